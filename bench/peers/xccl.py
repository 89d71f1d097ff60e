"""XCCL, torch's own backend for Intel GPUs (oneCCL underneath)."""

from __future__ import annotations

from lamport_xpu.bench.peers.ccl_environment import ccl_variant
from lamport_xpu.bench.peers.torch_group import TorchGroup


class Xccl(TorchGroup):
    name = "xccl"
    backend = "xccl"
    requires = ("torch.distributed",)
    devices = ("xpu",)

    def unavailable(self) -> str | None:
        import torch
        import torch.distributed as dist

        if not torch.xpu.is_available():
            return "needs an Intel GPU (torch.xpu.is_available() is False)"
        if not dist.is_xccl_available():
            return "this torch was built without xccl"
        return super().unavailable()

    @property
    def variant(self) -> str:
        return ccl_variant()
