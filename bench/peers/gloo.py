"""Gloo, torch's CPU backend. Its sockets sleep in epoll between calls, so an idle Gloo disturbs nobody."""

from __future__ import annotations

import os

from lamport_xpu.bench.peers.torch_group import TorchGroup


class Gloo(TorchGroup):
    name = "gloo"
    backend = "gloo"
    requires = ("torch.distributed",)

    def open(self) -> None:
        # Otherwise Gloo resolves the host name, which fails or picks a real network on many machines.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        super().open()
