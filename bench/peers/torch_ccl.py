"""The oneCCL bindings for PyTorch (torch-ccl), backend `ccl`: on CPU and Intel GPU, where they import."""

from __future__ import annotations

from lamport_xpu.bench.peers.ccl_environment import ccl_variant
from lamport_xpu.bench.peers.torch_group import TorchGroup


class TorchCcl(TorchGroup):
    name = "torch_ccl"
    backend = "ccl"
    requires = ("torch.distributed", "oneccl_bindings_for_pytorch")
    devices = ("cpu", "xpu")

    @property
    def variant(self) -> str:
        return ccl_variant()
