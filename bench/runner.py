"""One benchmark run inside one mpirun: open the backends, check each result, time, return rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lamport_xpu.bench import payload
from lamport_xpu.bench.consensus import Consensus
from lamport_xpu.bench.launch import World
from lamport_xpu.bench.peers import DEFAULT_MAX_BYTES, Call, Peer, first_line
from lamport_xpu.bench.rows import Row
from lamport_xpu.bench.timing import DISCIPLINES, Statistics, Subject, clock_for, measure
from lamport_xpu.bench.units import DType, element_count, format_size
from lamport_xpu.bench.watchdog import Watchdog


@dataclass(frozen=True)
class Plan:
    """What to measure. `seconds` is for all cells together, `stall_s` the most one cell may take."""

    sizes: Sequence[int]
    dtypes: Sequence[DType]
    disciplines: Sequence[str] = DISCIPLINES
    device: str = "cpu"
    rounds: int = 50
    seconds: float = 30.0
    stall_s: float = 120.0

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            for size in self.sizes:
                element_count(size, dtype)  # raises for sizes that do not fit

    @property
    def max_bytes(self) -> int:
        """What a communicator must take; no less than its default, which costs nothing."""
        return max(DEFAULT_MAX_BYTES, *self.sizes)

    @property
    def cells(self) -> int:
        return len(self.sizes) * len(self.dtypes) * len(self.disciplines)


Progress = Callable[[float, str], None]
"""Hears the fraction done (0 to 1) and what is being measured."""


@dataclass
class _Entry:
    """A backend in the run, with the reason it is out, if it is."""

    peer: Peer
    variant: str
    reason: str | None = None
    opened: bool = False


class Runner:
    """Opens backends once and measures a plan with them. Collective: every rank makes the same calls."""

    def __init__(self, world: World, peers: Sequence[Peer], watchdog: Watchdog, variant: str | None = None) -> None:
        """`variant` names the settings of the whole run; left out, each backend names its own."""
        self.world = world
        self.agree = Consensus(world.mpi)
        self._watchdog = watchdog
        self._entries = [_Entry(peer, peer.variant if variant is None else variant) for peer in peers]

    def __enter__(self) -> Runner:
        for entry in self._entries:
            entry.reason = self.agree.reason(entry.peer.unavailable())
            if entry.reason is None:
                self._watchdog.at = f"opening {entry.peer.name}"
                entry.opened = True
                entry.reason = self._together(entry.peer.open)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for entry in self._entries:
            if entry.opened:
                self._watchdog.at = f"closing {entry.peer.name}"
                entry.peer.close()

    @property
    def running(self) -> list[Peer]:
        return [e.peer for e in self._entries if e.reason is None]

    def run(self, plan: Plan, progress: Progress, sink: Callable[[list[Row]], None] = lambda _rows: None) -> list[Row]:
        """All rows, in the plan's order; `sink` gets all rows so far after every cell."""
        rows: list[Row] = []
        done = 0
        for dtype in plan.dtypes:
            for size in plan.sizes:
                for cell in self._measure_size(plan, dtype, size, done, progress):
                    rows += cell
                    done += 1
                    sink(rows)
        return rows

    def _measure_size(self, plan: Plan, dtype: DType, size: int, done: int, progress: Progress) -> Iterator[list[Row]]:
        """The rows of each discipline in turn, over buffers and operations prepared once."""
        steady = payload.SteadyPayload(element_count(size, dtype), dtype, self.world.rank, self.world.size, plan.device)
        self._watchdog.feed()
        prepared = [self._prepare(entry, plan, dtype, size) for entry in self._entries]
        for discipline in plan.disciplines:
            self._watchdog.feed()
            label = f"{dtype.name} {format_size(size)} {discipline}"
            subjects = [p.subject(steady) for p in prepared if p.reason is None]

            def tick(fraction: float, label: str = label, done: int = done) -> None:
                progress((done + fraction) / plan.cells, label)

            def note(doing: str, label: str = label) -> None:
                self._watchdog.at = f"{doing} ({label})"

            tick(0.0)
            clock = clock_for(plan.device)
            seconds = plan.seconds / plan.cells
            measure(subjects, discipline, clock, self.agree, plan.rounds, seconds, tick, note)
            done += 1
            timed = iter(subjects)
            yield [self._row(p, next(timed) if p.reason is None else None, dtype, size, discipline) for p in prepared]

    def _prepare(self, entry: _Entry, plan: Plan, dtype: DType, size: int) -> _Prepared:
        """A buffer, the operation on it, and the check of its result."""
        prepared = _Prepared(entry, torch.empty(element_count(size, dtype), dtype=dtype.torch, device=plan.device))
        prepared.reason = entry.reason or self.agree.reason(entry.peer.unsupported(dtype))
        if prepared.reason:
            return prepared

        self._watchdog.at = f"in the first calls of {entry.peer.name} ({dtype.name} {format_size(size)})"

        def prepare() -> None:
            prepared.call = entry.peer.prepare(prepared.buffer)
            payload.fill_random(prepared.buffer, self.world.rank, dtype)

        prepared.reason = self._together(prepare) or self._together(prepared.call)
        if prepared.reason:
            return prepared
        # Ours promises the oracle's bits, whoever runs it; others are held to what any order of summation
        # allows.
        count = payload.wrong_bits if entry.peer.name == "lamport" else payload.wrong_within_rounding
        prepared.wrong = self.agree.total(count(prepared.buffer, self.world.size, dtype))
        if prepared.wrong:
            prepared.reason = f"wrong result: {prepared.wrong} elements over all ranks, not timed"
        return prepared

    def _row(self, prepared: _Prepared, subject: Subject | None, dtype: DType, size: int, discipline: str) -> Row:
        entry = prepared.entry
        head = (entry.peer.name, entry.variant, dtype.name, size, self.world.size, discipline)
        if subject is None:
            return Row(*head, wrong=prepared.wrong, error=prepared.reason)
        if subject.error:
            # Its state is unknown now: better no further figures than doubtful ones.
            entry.reason = prepared.reason = subject.error
            return Row(*head, error=subject.error)
        times = Statistics.of(np.array(subject.samples))
        error = f"wrong result while timing: {subject.wrong} elements over all ranks" if subject.wrong else None
        return Row(
            *head,
            median_us=times.median,
            best_us=times.best,
            p99_us=times.p99,
            rounds=subject.rounds,
            calls=subject.calls,
            wrong=subject.wrong,
            ok=error is None,
            error=error,
        )

    def _together(self, action: Callable[[], object]) -> str | None:
        """Do something that may fail on some ranks; the reason it failed, the same on all."""
        reason = None
        try:
            action()
        except Exception as error:  # noqa: BLE001 - becomes the backend's row
            reason = first_line(error)
        return self.agree.reason(reason)


@dataclass
class _Prepared:
    """A backend with a buffer of one size and type."""

    entry: _Entry
    buffer: torch.Tensor
    call: Call = lambda: None
    wrong: int | None = None
    reason: str | None = None

    def subject(self, steady: payload.SteadyPayload) -> Subject:
        return Subject(
            self.entry.peer.name,
            self.call,
            fill=lambda: steady.fill(self.buffer),
            wrong_now=lambda: steady.wrong(self.buffer),
        )
