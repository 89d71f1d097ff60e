"""The backends by name. A name of the form `package.module:Class` brings your own."""

from __future__ import annotations

import importlib

from lamport_xpu.bench.peers.base import DEFAULT_MAX_BYTES, Call, Peer, Setup, first_line
from lamport_xpu.bench.peers.flashinfer import FlashInfer, FlashInferNorm, FlashInferNormOverlap, FlashInferOverlap
from lamport_xpu.bench.peers.gloo import Gloo
from lamport_xpu.bench.peers.lamport import Lamport
from lamport_xpu.bench.peers.mpi import Mpi, MpiPersistent
from lamport_xpu.bench.peers.nccl import Nccl
from lamport_xpu.bench.peers.oneccl import OneCcl
from lamport_xpu.bench.peers.torch_ccl import TorchCcl
from lamport_xpu.bench.peers.torch_symmetric import SymmetricOneShot, SymmetricTwoShot
from lamport_xpu.bench.peers.vllm_custom import VllmCustom
from lamport_xpu.bench.peers.xccl import Xccl
from lamport_xpu.bench.units import UsageError

__all__ = ["DEFAULT_MAX_BYTES", "PEERS", "BackendError", "Call", "Peer", "Setup", "find_peer", "first_line"]

_HOST = (Lamport, Mpi, MpiPersistent, Gloo, OneCcl, Xccl, TorchCcl)
_CUDA = (FlashInfer, FlashInferOverlap, FlashInferNorm, FlashInferNormOverlap, VllmCustom, Nccl)
_SYMMETRIC = (SymmetricOneShot, SymmetricTwoShot)

PEERS: dict[str, type[Peer]] = {p.name: p for p in (*_HOST, *_CUDA, *_SYMMETRIC)}


class BackendError(UsageError):
    """A backend the benchmark does not know."""


def find_peer(name: str) -> type[Peer]:
    """The class behind a name in `--backends`."""
    if name in PEERS:
        return PEERS[name]
    module, colon, cls = name.partition(":")
    if not colon:
        raise BackendError(f"backend {name!r}: expected one or more of {', '.join(PEERS)}, or package.module:Class")
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise BackendError(f"backend {name!r}: {first_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, Peer)):
        raise BackendError(f"backend {name!r}: not a subclass of lamport_xpu.bench.peers.Peer")
    return found
