"""Backends that misbehave, for tests of the benchmark: `--backends bench_peers:Wrong`."""

from __future__ import annotations

import time

import torch

from lamport_xpu.bench.peers import Call
from lamport_xpu.bench.peers.base import Peer
from lamport_xpu.bench.peers.mpi import Mpi


class Wrong(Mpi):
    """One element of the result is off by more than any rounding."""

    name = "wrong"

    def prepare(self, buffer: torch.Tensor) -> Call:
        right = super().prepare(buffer)

        def call() -> None:
            right()
            buffer[-1] += 1.0

        return call


class WrongLater(Mpi):
    """Right when checked, wrong from the third call on."""

    name = "wrong_later"

    def prepare(self, buffer: torch.Tensor) -> Call:
        right, calls = super().prepare(buffer), 0

        def call() -> None:
            nonlocal calls
            right()
            calls += 1
            if calls > 2:
                buffer[0] = 1.0

        return call


class LosesItsLink(Mpi):
    """In the third call rank 1 raises, and rank 0 in time, as a library with bounded waits does."""

    name = "loses_its_link"

    def prepare(self, buffer: torch.Tensor) -> Call:
        right, calls = super().prepare(buffer), 0

        def call() -> None:
            nonlocal calls
            calls += 1
            if calls < 3:
                right()
            elif self.setup.world.rank == 1:
                raise RuntimeError("the link is down")
            else:
                time.sleep(0.2)
                raise TimeoutError("no answer from rank 1")

        return call


class CannotOpen(Peer):
    """Fails to open on one rank only."""

    name = "cannot_open"

    def open(self) -> None:
        if self.setup.world.rank == 1:
            raise OSError("no such device")

    def prepare(self, buffer: torch.Tensor) -> Call:
        raise AssertionError("never opened")

    def close(self) -> None:
        pass


class Hangs(Mpi):
    """Right when checked, then one rank never comes back."""

    name = "hangs"

    def prepare(self, buffer: torch.Tensor) -> Call:
        right, calls = super().prepare(buffer), 0

        def call() -> None:
            nonlocal calls
            right()
            calls += 1
            while calls > 1 and self.setup.world.rank == 0:
                time.sleep(1.0)

        return call
