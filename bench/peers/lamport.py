"""Our own all-reduce, called as a user would."""

from __future__ import annotations

from functools import partial
from importlib import metadata
from typing import Any

import torch

from lamport_xpu.bench.peers.base import Call, Peer, Setup


class Lamport(Peer):
    name = "lamport"
    requires = ("lamport_xpu.comm",)
    devices = ("cpu", "cuda", "xpu")

    def __init__(self, setup: Setup, thresholds: Any = None) -> None:
        """`thresholds` (comm.policy.Thresholds) forces the algorithm by size; the tuner uses it."""
        super().__init__(setup)
        self._options = {} if thresholds is None else {"thresholds": thresholds}

    def version(self) -> str | None:
        return f"lamport-xpu {metadata.version('lamport-xpu')}"

    def open(self) -> None:
        from lamport_xpu.comm import Communicator

        self._comm = Communicator.from_mpi(
            self.setup.world.mpi, device=self.setup.device, max_bytes=self.setup.max_bytes, **self._options
        )

    def prepare(self, buffer: torch.Tensor) -> Call:
        return partial(self._comm.all_reduce, buffer, buffer)

    def close(self) -> None:
        if hasattr(self, "_comm"):
            self._comm.close()
