"""torch's symmetric memory all-reduce: one-shot and two-shot. It takes bf16 and fp32."""

from __future__ import annotations

import os
from typing import Any

import torch

from lamport_xpu.bench.peers.base import Call, Peer
from lamport_xpu.bench.peers.out_of_place import OutOfPlace
from lamport_xpu.bench.peers.torch_group import TorchGroup
from lamport_xpu.bench.units import FP16, DType


class _Gloo(TorchGroup):
    """The group over which ranks exchange handles."""

    name = "gloo"
    backend = "gloo"
    devices = ("cuda",)


class SymmetricOneShot(Peer):
    name = "torch_symm_one_shot"
    requires = ("torch.distributed._symmetric_memory",)
    devices = ("cuda",)

    def unsupported(self, dtype: DType) -> str | None:
        return "torch's symmetric memory has no fp16" if dtype == FP16 else None

    def version(self) -> str | None:
        return f"torch {torch.__version__}"

    def open(self) -> None:
        os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._bootstrap = _Gloo(self.setup)
        self._bootstrap.open()
        self._keep: list[Any] = []

    def prepare(self, buffer: torch.Tensor) -> Call:
        import torch.distributed._symmetric_memory as symmetric

        group = self._bootstrap._group.group_name
        if buffer.nbytes % 16:
            raise ValueError("torch's symmetric memory needs whole 16-byte accesses")
        source = symmetric.empty(buffer.numel(), dtype=buffer.dtype, device=buffer.device)
        self._keep.append((source, symmetric.rendezvous(source, group)))
        return self._call(source, buffer, group)

    def _call(self, source: torch.Tensor, buffer: torch.Tensor, group: str) -> Call:
        reduce = torch.ops.symm_mem.one_shot_all_reduce_out
        return OutOfPlace(buffer, source, buffer, lambda: reduce(source, "sum", group, buffer))

    def close(self) -> None:
        torch.cuda.synchronize()
        self._keep = []
        if hasattr(self, "_bootstrap"):
            self._bootstrap.close()


class SymmetricTwoShot(SymmetricOneShot):
    """In place, so that the later calls of a batch reduce sums."""

    name = "torch_symm_two_shot"

    def _call(self, source: torch.Tensor, buffer: torch.Tensor, group: str) -> Call:
        reduce = torch.ops.symm_mem.two_shot_all_reduce_
        return OutOfPlace(buffer, source, source, lambda: reduce(source, "sum", group))
