"""`--tune`: up to which size each algorithm is the fastest here, kept where Communicator looks for it.

Measured are one-shot and two-shot, each forced at every size, and the library a Communicator hands large
tensors to: MPI where it has the type, else Gloo. Single sizes are noisy, so the thresholds are not where one
curve first crosses another, but the pair that makes the whole measured range fastest.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from lamport_xpu.bench import machine, plot, report, terminal
from lamport_xpu.bench.launch import World
from lamport_xpu.bench.peers import Peer, Setup, find_peer
from lamport_xpu.bench.peers.lamport import Lamport
from lamport_xpu.bench.rows import Row
from lamport_xpu.bench.runner import Runner
from lamport_xpu.bench.single import plan_of
from lamport_xpu.bench.units import DType, UsageError, format_size
from lamport_xpu.bench.watchdog import Watchdog
from lamport_xpu.comm import policy
from lamport_xpu.comm.policy import UNLIMITED, Thresholds

LIBRARIES = {"cpu": ("mpi", "gloo"), "xpu": ("xccl",)}
SIZES = ",".join(str(1 << power) for power in range(10, 25))
"""1 KiB to 16 MiB. Below, one-shot has nothing to lose against."""

_MARGIN = math.log(1.03)
"""How much faster the less simple algorithm must be to be preferred: noise must not draw a boundary."""

Times = Sequence[float]
"""Microseconds a call, by size; infinite where an algorithm was not measured."""


class OneShot(Lamport):
    name = "one-shot"
    forces = Thresholds(UNLIMITED, UNLIMITED)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, self.forces)


class TwoShot(OneShot):
    name = "two-shot"
    forces = Thresholds(0, UNLIMITED)


def best_thresholds(sizes: Sequence[int], one_shot: Times, two_shot: Times, library: Times) -> Thresholds:
    """The thresholds that minimise the sum of log(time) over the sizes, which ascend.

    The logarithm gives every size the same weight. Of about equally good pairs the one with more of the
    simpler algorithm wins. A boundary past the last size means "to the end": nothing justifies a limit.
    """

    def cost(times: Times, first: int, last: int, complexity: int) -> float:
        return sum(math.log(t) + complexity * _MARGIN for t in times[first:last])

    count = len(sizes)
    pairs = [(one, two) for one in range(count, -1, -1) for two in range(count, one - 1, -1)]
    one, two = min(
        pairs,
        key=lambda p: cost(one_shot, 0, p[0], 0) + cost(two_shot, p[0], p[1], 1) + cost(library, p[1], count, 2),
    )

    def limit(boundary: int) -> int:
        return UNLIMITED if boundary == count else sizes[boundary - 1] if boundary else 0

    return Thresholds(limit(one), limit(two))


def thresholds_from(rows: Sequence[Row], dtype: DType, sizes: Sequence[int]) -> Thresholds:
    """The best thresholds for one type; raises UsageError where one of ours was not measured."""
    times = {(row.backend, row.bytes): row.median_us for row in rows if row.ok}
    library = next((row.backend for row in rows if row.backend not in (OneShot.name, TwoShot.name)), "")

    def curve(backend: str) -> list[float]:
        return [times.get((backend, size)) or math.inf for size in sizes]

    one_shot, two_shot = curve(OneShot.name), curve(TwoShot.name)
    if math.inf in one_shot or math.inf in two_shot:
        reasons = {row.error for row in rows if row.error}
        raise UsageError(f"cannot tune {dtype.name}: {'; '.join(sorted(reasons)) or 'a size was not measured'}")
    return best_thresholds(sizes, one_shot, two_shot, curve(library))


def main(args: argparse.Namespace) -> int:
    """Every rank runs this; rank 0 alone prints and stores."""
    # synced: in a model's forward pass, other work stands between two all-reduces.
    plan = plan_of(args, SIZES, "synced")
    if len(plan.disciplines) > 1 or list(plan.sizes) != sorted(plan.sizes):
        raise UsageError("--tune needs one --discipline, and --sizes in ascending order")
    libraries = args.backends.split(",") if args.backends else LIBRARIES.get(plan.device, ())
    candidates = [find_peer(name) for name in libraries]
    world = World.start()
    speaker = world.rank == 0
    setup = Setup(world, plan.device, max_bytes=plan.max_bytes)
    facts: dict[str, Any] = {}
    rows: list[Row] = []
    found: dict[DType, Thresholds] = {}
    with terminal.ProgressBar(enabled=speaker and not args.quiet) as progress:
        for dtype in plan.dtypes:
            library = (peer for cls in candidates if not (peer := cls(setup)).unsupported(dtype))
            peers: list[Peer] = [OneShot(setup), TwoShot(setup), *islice(library, 1)]
            part = replace(plan, dtypes=(dtype,), seconds=plan.seconds / len(plan.dtypes))
            with Watchdog(world.rank, plan.stall_s) as watchdog, Runner(world, peers, watchdog) as runner:
                facts = facts or machine.describe(world, plan.device, runner.running)
                measured = runner.run(part, progress)
            found[dtype] = thresholds_from(measured, dtype, plan.sizes)
            rows += measured
    if not speaker:
        return 0
    for dtype, thresholds in found.items():
        policy.store(plan.device, world.size, dtype.full_name, thresholds)
    if args.json:
        report.write_json(args.json, facts, rows)
    if args.plot:
        plot.write_plot(args.plot, facts, rows)
    if not args.quiet:
        console = terminal.console()
        report.print_report(console, facts, rows)
        for dtype, thresholds in found.items():
            console.print(f"{dtype.name}: {describe(thresholds)}", highlight=False)
        console.print(f"stored in {policy.cache_file()}", highlight=False)
    return 0


def describe(thresholds: Thresholds) -> str:
    """In words: "one-shot up to 32 KiB, two-shot up to 4 MiB, then the library"."""
    one, two = thresholds.one_shot_max_bytes, thresholds.two_shot_max_bytes
    if one >= UNLIMITED:
        return "one-shot at every size"
    parts = [f"one-shot up to {format_size(one)}"] * (one > 0)
    if two >= UNLIMITED:
        return ", ".join([*parts, "two-shot beyond"]) if parts else "two-shot at every size"
    parts += [f"two-shot up to {format_size(two)}"] * (two > one)
    return ", ".join([*parts, "then the library"]) if parts else "the library at every size"
