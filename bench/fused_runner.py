"""One run of the fused benchmark: every implementation of every case, checked, then timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lamport_xpu.bench import machine
from lamport_xpu.bench.consensus import Consensus
from lamport_xpu.bench.fused_cases import Case, Model, Place, Reduce, Run, wrong
from lamport_xpu.bench.fused_report import ADDED_FIRST, ALONE, FUSED, SEPARATE, FusedRow
from lamport_xpu.bench.launch import World
from lamport_xpu.bench.peers import Peer, Setup, first_line
from lamport_xpu.bench.peers.lamport import Lamport
from lamport_xpu.bench.timing import Statistics, Subject, clock_for, measure
from lamport_xpu.bench.units import DTYPES, DType
from lamport_xpu.bench.watchdog import Watchdog


@dataclass(frozen=True)
class FusedPlan:
    """What to measure. `seconds` is for all cells together, `stall_s` the most one cell may take."""

    cases: Sequence[type[Case]]
    models: Sequence[Model]
    tokens: Sequence[int]
    dtype: DType
    stock: Sequence[type[Peer]]
    disciplines: Sequence[str]
    device: str
    rounds: int
    seconds: float
    stall_s: float

    def cells(self) -> Iterator[tuple[type[Case], Model, int, str]]:
        for case in self.cases:
            for model in self.models:
                if model.name in case.models:
                    for tokens in self.tokens:
                        for discipline in self.disciplines:
                            yield case, model, tokens, discipline


class _Ours(Lamport):
    """The communicator, with its handle for torch's operators."""

    def open(self) -> None:
        super().open()
        self.handle: int = self._comm.torch_handle


def run_plan(
    world: World, plan: FusedPlan, progress: Callable[[float, str], None]
) -> tuple[dict[str, Any], list[FusedRow]]:
    """What it was measured on, and all rows."""
    agree = Consensus(world.mpi)
    setup = Setup(world, plan.device)
    ours, stock = _Ours(setup), [peer(setup) for peer in plan.stock]
    rows: list[FusedRow] = []
    with Watchdog(world.rank, plan.stall_s) as watchdog, ExitStack() as opened:
        reasons: dict[str, str | None] = {}
        for peer in (ours, *stock):
            reasons[peer.name] = agree.reason(peer.unavailable())
            if reasons[peer.name] is None:
                watchdog.at = f"opening {peer.name}"
                opened.callback(peer.close)
                reasons[peer.name] = agree.reason(_attempt(peer.open))
        if reasons[ours.name] is not None:
            raise RuntimeError(reasons[ours.name])
        facts = machine.describe(world, plan.device, [p for p in (ours, *stock) if reasons[p.name] is None])
        cells = list(plan.cells())
        for done, (kind, model, tokens, discipline) in enumerate(cells):
            watchdog.feed()
            place = Place(world.rank, world.size, tokens, plan.dtype, plan.device)
            label = f"{kind.name} {model.name} {tokens} tokens {discipline}"
            watchdog.at = f"in {label}"
            case = kind(model, place)
            entries = [_Entry(FUSED, case.fused(ours.handle)), _Entry(ALONE, case.alone(ours.handle))]
            entries.append(_Entry(SEPARATE, case.separate(_own_reduce(ours.handle))))
            if added_first := case.added_first(ours.handle):
                entries.append(_Entry(ADDED_FIRST, added_first))
            for peer in stock:
                entries += _stock_entries(peer, case, reasons[peer.name], agree)
            for entry in entries:
                entry.check(case, agree)
            subjects = {e.name: Subject(e.name, e.run, lambda: None, lambda: 0) for e in entries if e.error is None}

            def tick(fraction: float, done: int = done, label: str = label) -> None:
                progress((done + fraction) / len(cells), label)

            measure(
                list(subjects.values()), discipline, clock_for(plan.device), agree, plan.rounds,
                plan.seconds / len(cells), tick,
            )  # fmt: skip
            head = (kind.name, model.name)
            tail = (plan.dtype.name, tokens, world.size, discipline)
            rows += [_row(head, entry, tail, subjects.get(entry.name)) for entry in entries]
    return facts, rows


@dataclass
class _Entry:
    """One implementation of a case; `error` says why it is not measured."""

    name: str
    run: Run
    error: str | None = None
    wrong: int | None = None

    def check(self, case: Case, agree: Consensus) -> None:
        """The result, on all ranks, unless this is the bare all-reduce inside."""
        results: list[Any] = []
        if self.error is None:
            self.error = agree.reason(_attempt(lambda: results.append(self.run())))
        if self.error is None and self.name != ALONE:
            self.wrong = agree.total(wrong(results[0], case.exact(), case.place))
            if self.wrong:
                self.error = f"wrong result: {self.wrong} elements over all ranks, not timed"


def _own_reduce(handle: int) -> Reduce:
    op = torch.ops.lamport_xpu.all_reduce_.default

    def reduce(x: Tensor) -> Tensor:
        op(x, handle)
        return x

    return reduce


def _stock_entries(peer: Peer, case: Case, reason: str | None, agree: Consensus) -> list[_Entry]:
    """With separate steps, and with the peer's own fused kernel if it has one."""
    shape, dtype = case.reduced()
    reason = reason or peer.unsupported(next(d for d in DTYPES.values() if d.torch == dtype))
    reduce: list[Reduce] = []

    def prepare() -> None:
        buffer = torch.empty(shape, dtype=dtype, device=case.place.device)
        call = peer.prepare(buffer)

        def through_buffer(x: Tensor) -> Tensor:
            buffer.copy_(x)
            call()
            return buffer

        reduce.append(through_buffer)

    if reason:
        return [_Entry(peer.name, tuple, error=reason)]
    failed = agree.reason(_attempt(prepare))
    entries = [_Entry(peer.name, case.separate(reduce[0]) if not failed else tuple, error=failed)]
    own: list[Run | None] = []
    failed = agree.reason(_attempt(lambda: own.append(case.by_peer(peer))))
    if failed or own[0]:
        entries.append(_Entry(f"{peer.name} fused", tuple if failed else own[0] or tuple, error=failed))
    return entries


def _attempt(action: Callable[[], object]) -> str | None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - becomes the implementation's row
        return first_line(error)
    return None


def _row(head: tuple[str, str], entry: _Entry, tail: tuple[str, int, int, str], subject: Subject | None) -> FusedRow:
    if subject is None or subject.error or not subject.samples:
        return FusedRow(*head, entry.name, *tail, wrong=entry.wrong, error=entry.error or (subject and subject.error))
    times = Statistics.of(np.array(subject.samples))
    return FusedRow(
        *head, entry.name, *tail, times.median, times.best, times.p99, subject.rounds, subject.calls, entry.wrong, True
    )
