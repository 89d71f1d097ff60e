"""Functional probe of the fused collectives: which of them this device and this build can do, by doing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamport_xpu.comm.communicator import Communicator
from lamport_xpu.comm.errors import CollectiveTimeout, LamportError

_HIDDEN = 64
_EPS = 1e-6


def working(comm: Communicator, device: str, fusions: frozenset[str]) -> frozenset[str]:
    """The part of `fusions` whose collective gives a known answer. Collective: all ranks call it alike."""
    return frozenset(name for name in sorted(fusions) if _works(_PROBES[name], comm, device))


def _works(check: Callable[[Communicator, str], bool], comm: Communicator, device: str) -> bool:
    try:
        return check(comm, device)
    except CollectiveTimeout:
        raise  # nothing works on this communicator any more
    except LamportError:  # this device does not have it
        return False


def _ramp(comm: Communicator, device: str, *shape: int) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return (torch.arange(count, dtype=torch.float32).view(shape) / count + comm.rank).to(device)


def _close(found: Any, expected: torch.Tensor) -> bool:
    return bool(torch.allclose(found.cpu().float(), expected.cpu(), rtol=1e-4, atol=1e-4))


def _total(comm: Communicator, device: str, *shape: int) -> torch.Tensor:
    """Sum of all ranks' ramps."""
    return _ramp(comm, device, *shape) * comm.world_size + sum(range(comm.world_size)) - comm.world_size * comm.rank


def _shared(comm: Communicator, device: str) -> bool:
    x = _ramp(comm, device, 3, _HIDDEN)
    return _close(comm.add_all_reduce(x, x), 2 * _total(comm, device, 3, _HIDDEN))


def _add_norm(comm: Communicator, device: str) -> bool:
    x = _ramp(comm, device, 3, _HIDDEN)
    weight = torch.full((_HIDDEN,), 2.0, device=device)
    normed, residual = comm.add_all_reduce_rms_norm(x, None, x, weight, _EPS)
    expected = _total(comm, device, 3, _HIDDEN) + x
    scale = torch.rsqrt(expected.pow(2).mean(-1, keepdim=True) + _EPS)
    return _close(residual, expected) and _close(normed, expected * scale * weight)


def _qk_norm(comm: Communicator, device: str) -> bool:
    qkv = _ramp(comm, device, 3, 2 * _HIDDEN)
    q_size, kv_size = _HIDDEN, _HIDDEN // 2
    weight = torch.full((q_size,), 2.0, device=device)
    q, k = comm.qk_rms_norm(qkv, weight, weight[:kv_size].clone(), q_size, kv_size, _EPS)
    rows = [qkv.cpu() - comm.rank + rank for rank in range(comm.world_size)]
    for found, first, size in ((q, 0, q_size), (k, q_size, kv_size)):
        part = slice(first, first + size)
        mean = torch.stack([row[:, part].pow(2).mean(-1, keepdim=True) for row in rows]).mean(0)
        if not _close(found, qkv.cpu()[:, part] * torch.rsqrt(mean + _EPS) * 2.0):
            return False
    return True


_PROBES: dict[str, Callable[[Communicator, str], bool]] = {
    "qk_norm": _qk_norm,
    "add_norm": _add_norm,
    "shared": _shared,
}
