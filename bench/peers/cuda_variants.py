"""Ours, launched in other ways than it chooses by itself: `--backends lamport_xpu.bench.peers.cuda_variants:Chain`."""

from __future__ import annotations

from typing import ClassVar

from lamport_xpu.bench.peers.lamport import Lamport
from lamport_xpu.comm.policy import UNLIMITED, Thresholds


class _Variant(Lamport):
    devices = ("cuda",)
    threads: ClassVar[int] = 0
    overlap: ClassVar[int] = 0
    thresholds: ClassVar[Thresholds | None] = None

    def open(self) -> None:
        if self.thresholds is not None:
            self._options = {"thresholds": self.thresholds}
        super().open()
        self._comm._engine.set_launch(self.threads, self.overlap)  # type: ignore[attr-defined]


class Plain(_Variant):
    """Each kernel starts when the one before has ended."""

    name = "plain"


class Prepare(_Variant):
    """Set up on the GPU while the kernel before ends."""

    name = "prepare"
    overlap = 1


class Chain(_Variant):
    """Set up on the GPU while the kernel before runs."""

    name = "chain"
    overlap = 2


class Chain128(Chain):
    name = "chain-128"
    threads = 128


class Chain256(Chain):
    name = "chain-256"
    threads = 256


class TwoShot(Chain):
    """At every size."""

    name = "two-shot"
    thresholds = Thresholds(0, UNLIMITED)


class OneShot(Chain):
    """At every size."""

    name = "one-shot"
    thresholds = Thresholds(UNLIMITED, UNLIMITED)
