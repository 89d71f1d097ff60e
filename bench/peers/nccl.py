"""NCCL through torch.distributed: one GPU a rank."""

from __future__ import annotations

import torch

from lamport_xpu.bench.peers.cuda_library import ranks_share_a_gpu
from lamport_xpu.bench.peers.torch_group import TorchGroup


class Nccl(TorchGroup):
    name = "nccl"
    backend = "nccl"
    requires = ("torch.distributed",)
    devices = ("cuda",)

    def unavailable(self) -> str | None:
        reason = super().unavailable()
        if reason is None and ranks_share_a_gpu(self.setup.world):
            reason = "needs a GPU for each rank"
        return reason

    def version(self) -> str | None:
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        return "NCCL " + ".".join(map(str, version))
