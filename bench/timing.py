"""Timing of several backends against each other, on any device.

Disciplines
    stream  batches of K calls back to back, a batch timed as a whole; K makes a batch last about BATCH_S.
    synced  a barrier before every call, every call timed alone.
Every sample is the slowest rank's. Backends take turns round by round, in rotated order, because a
machine's speed drifts within seconds (cross-core latency alone flips between two modes): compared are
figures of the same moments.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Protocol

import numpy as np

from lamport_xpu.bench.consensus import Consensus
from lamport_xpu.bench.peers.base import Call, first_line

DISCIPLINES = ("stream", "synced")
BATCH_S = 1.5e-3
"""Length of one backend's turn: long against a barrier's skew, short against the machine's drift."""
MAX_CALLS = 10_000


class Clock(Protocol):
    """How time is taken on a kind of device."""

    def prepare(self, call: Call, calls: int) -> Callable[[], float]:
        """A function that makes `calls` calls back to back, waits for the last and returns the seconds."""


class HostClock:
    """The calls return when the result is there, so the host's clock is enough."""

    def prepare(self, call: Call, calls: int) -> Callable[[], float]:
        clock = time.perf_counter

        def timed() -> float:
            start = clock()
            for _ in repeat(None, calls):
                call()
            return clock() - start

        return timed


def clock_for(device: str) -> Clock:
    """The clock of a device."""
    if device == "cpu":
        return HostClock()
    if device == "cuda":
        from lamport_xpu.bench.cuda_clock import CudaClock

        return CudaClock()
    raise NotImplementedError(f"timing on {device} is not written yet")


@dataclass
class Subject:
    """One backend in one cell (dtype, size, discipline). `samples` are seconds a call, this rank's."""

    name: str
    call: Call
    fill: Callable[[], None]
    """Writes the next input."""
    wrong_now: Callable[[], int]
    """Counts wrong elements in the buffer after a sample."""
    calls_per_sample: int = 1
    samples_per_round: int = 1
    samples: list[float] = field(default_factory=list)
    rounds: int = 0
    wrong: int = 0
    error: str | None = None
    _timed: Callable[[], float] | None = None

    @property
    def calls(self) -> int:
        return len(self.samples) * self.calls_per_sample


@dataclass(frozen=True)
class Statistics:
    """Microseconds a call."""

    median: float
    best: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float] | np.ndarray) -> Statistics:
        median, best, p99 = np.percentile(np.asarray(seconds) * 1e6, (50, 0, 99))
        return cls(float(median), float(best), float(p99))


def calibrate(subject: Subject, discipline: str, clock: Clock, agree: Consensus) -> None:
    """Warm up and choose the same number of calls on all ranks, so that a round lasts about BATCH_S."""
    calls, slowest = 1, 0.0
    while True:
        timed = clock.prepare(subject.call, calls)
        subject.fill()
        agree.barrier()
        try:
            elapsed = timed()
        except Exception as error:  # noqa: BLE001 - becomes the backend's row, the others go on
            subject.error, elapsed = first_line(error), 0.0
        subject.error = agree.reason(subject.error)
        if subject.error:
            return
        slowest = agree.most_of(elapsed)
        if slowest >= BATCH_S / 4 or calls >= MAX_CALLS:
            break
        calls *= 4
    per_round = max(1, min(MAX_CALLS, round(BATCH_S / slowest * calls)))
    if discipline == "stream":
        subject.calls_per_sample = per_round
    else:
        # Filling and the barrier cost time too; fewer calls keep both disciplines' rounds of comparable
        # length.
        subject.samples_per_round = min(per_round, 50)
    subject._timed = clock.prepare(subject.call, subject.calls_per_sample)


def measure(
    subjects: Sequence[Subject],
    discipline: str,
    clock: Clock,
    agree: Consensus,
    rounds: int,
    seconds: float,
    tick: Callable[[float], None] = lambda _fraction: None,
    note: Callable[[str], None] = lambda _doing: None,
) -> None:
    """Fill in the subjects' samples: at most `rounds` rounds and, calibration aside, about `seconds` seconds.

    A backend that raises on any rank drops out on all of them with the reason in `error`. `tick` hears the
    fraction done, between rounds; `note` what is being done, for the report of a hang.
    """
    for subject in subjects:
        note(f"in {subject.name}")
        calibrate(subject, discipline, clock, agree)
    start = time.perf_counter()
    collecting = gc.isenabled()
    gc.disable()  # a collection inside a batch would be charged to whoever runs
    try:
        for turn in range(rounds):
            running = [s for s in subjects if not s.error]
            used = agree.most_of(time.perf_counter() - start) / seconds
            tick(max(turn / rounds, min(used, 1.0)))
            if not running or used >= 1.0:
                break
            first = turn % len(running)
            for subject in running[first:] + running[:first]:
                note(f"in {subject.name}")
                _one_round(subject, agree)
                note(f"after {subject.name}, waiting for the other ranks")
            for subject in running:
                subject.error = agree.reason(subject.error)
    finally:
        if collecting:
            gc.enable()
    for subject in subjects:
        subject.wrong = agree.total(subject.wrong)
        if not subject.error and subject.samples:
            subject.samples = agree.most(np.array(subject.samples)).tolist()
    tick(1.0)


def _one_round(subject: Subject, agree: Consensus) -> None:
    """Every rank passes the same barriers, also after an error of its own."""
    assert subject._timed is not None
    for _ in range(subject.samples_per_round):
        if not subject.error:
            subject.fill()
        agree.barrier()
        if subject.error:
            continue
        try:
            elapsed = subject._timed()
        except Exception as error:  # noqa: BLE001 - becomes the backend's row, the others go on
            subject.error = first_line(error)
            continue
        subject.samples.append(elapsed / subject.calls_per_sample)
        subject.wrong += subject.wrong_now()
    subject.rounds += 1
