"""A sweep: one mpirun for every oneCCL variant, because oneCCL reads its environment once a process.

Ours runs along in each as the yardstick. The variants take turns in several passes, rotated, so that a slow
minute of the machine does not fall on one variant alone. Each mpirun has a time-out: a variant that hangs or
crashes is a row that says so.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamport_xpu.bench import launch, machine, plot, report, terminal
from lamport_xpu.bench.peers import find_peer
from lamport_xpu.bench.rows import OURS, Row, merge_by
from lamport_xpu.bench.runner import Plan
from lamport_xpu.bench.single import plan_of
from lamport_xpu.bench.variants import ONECCL_VARIANTS, Variant, clean_environment, intel_gpu_missing

BACKENDS = {"cpu": ("lamport", "oneccl"), "xpu": ("lamport", "xccl", "torch_ccl")}
_SCRIPT = Path(__file__).with_name("allreduce_sizes.py")
_GRACE_S = 5.0
"""From asking an mpirun to end to ending it."""


@dataclass(frozen=True)
class Outcome:
    """What came back from one mpirun. `facts` is its machine object, None when it wrote none."""

    rows: list[Row]
    facts: dict[str, Any] | None = None


def run_variant(variant: Variant, plan: Plan, ranks: int, backends: Sequence[str], limit_s: float) -> Outcome:
    """One mpirun, of at most `limit_s` seconds. Cells it did not get to are rows with the reason."""
    with tempfile.TemporaryDirectory(prefix="lamport-sweep-") as folder:
        result = Path(folder) / "rows.json"
        command = [launch.mpirun(), "-n", str(ranks), sys.executable, str(_SCRIPT), "--quiet"]
        command += ["--json", str(result), "--backends", ",".join(backends), "--variant", variant.name]
        command += _arguments(plan, limit_s) + ["--cached-operations"] * variant.cached
        reason = _run(command, clean_environment(variant), limit_s)
        facts, rows = report.read_json(result) if result.exists() else (None, [])
    names = [find_peer(backend).name for backend in backends]
    measured = {(row.backend, *row.cell) for row in rows}
    absent = unmeasured(variant.name, plan, ranks, names, reason or "the run ended early")
    return Outcome(rows + [row for row in absent if (row.backend, *row.cell) not in measured], facts)


def unmeasured(variant: str, plan: Plan, ranks: int, backends: Sequence[str], reason: str) -> list[Row]:
    """A row with the reason for every cell."""
    return [
        Row(backend, variant, dtype.name, size, ranks, discipline, error=reason)
        for dtype in plan.dtypes
        for size in plan.sizes
        for discipline in plan.disciplines
        for backend in backends
    ]


def _arguments(plan: Plan, limit_s: float) -> list[str]:
    return [
        f"--sizes={','.join(map(str, plan.sizes))}",
        f"--dtypes={','.join(dtype.name for dtype in plan.dtypes)}",
        f"--discipline={'both' if len(plan.disciplines) > 1 else plan.disciplines[0]}",
        f"--device={plan.device}",
        f"--rounds={plan.rounds}",
        f"--seconds={plan.seconds}",
        f"--stall={limit_s}",  # the time-out here comes first
    ]


def _run(command: list[str], environment: dict[str, str], limit_s: float) -> str | None:
    """Run to the end or to the time-out; what went wrong, in a line."""
    # mpirun is a script that looks for its helpers on PATH.
    folder = str(Path(command[0]).parent)
    environment["PATH"] = os.pathsep.join([folder, environment.get("PATH", os.defpath)])
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"hung: ended after {limit_s:g} s"
        finally:
            _end(process)  # also when the user presses Ctrl-C
        output.seek(0)
        said = [line.strip() for line in output if line.strip() and not line.startswith("=")]
    return f"mpirun ended with code {code}: {said[-1] if said else 'no message'}" if code else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group we started; its launcher takes the ranks down with it."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def sweep(
    variants: Sequence[Variant],
    plan: Plan,
    ranks: int,
    backends: Sequence[str],
    passes: int,
    limit_s: float,
    progress: terminal.ProgressBar,
) -> tuple[list[Row], dict[str, Any] | None]:
    """All variants in `passes` passes; rows merged over passes, in the order of the variants."""
    rows: list[Row] = []
    facts: dict[str, Any] | None = None
    done = 0
    for turn in range(passes):
        first = turn * len(variants) // passes
        for variant in [*variants[first:], *variants[:first]]:
            progress(done / (passes * len(variants)), f"{variant.name}, pass {turn + 1} of {passes}")
            outcome = run_variant(variant, plan, ranks, backends, limit_s)
            rows += outcome.rows
            facts = facts or outcome.facts
            done += 1
    order = {variant.name: position for position, variant in enumerate(variants)}
    merged = merge_by(rows, key=lambda row: (row.cell, row.backend, row.variant))
    cells = {row.cell: position for position, row in reversed(list(enumerate(rows)))}
    merged.sort(key=lambda row: (cells[row.cell], row.backend != OURS, order[row.variant]))
    return merged, facts


def main(args: argparse.Namespace) -> int:
    """`--sweep`: no ranks here, only the mpiruns it starts."""
    plan = plan_of(args)
    backends = args.backends.split(",") if args.backends else BACKENDS.get(plan.device, BACKENDS["cpu"])
    names = [find_peer(backend).name for backend in backends]
    no_gpu = intel_gpu_missing() or (None if plan.device == "xpu" else "needs --device xpu")
    offered = [v for v in ONECCL_VARIANTS if not (v.needs_intel_gpu and no_gpu)]
    with terminal.ProgressBar(enabled=not args.quiet) as progress:
        rows, facts = sweep(offered, plan, args.ranks, backends, args.passes, args.limit, progress)
    others = [name for name in names if name != OURS]
    for variant in ONECCL_VARIANTS:
        if variant not in offered:
            rows += unmeasured(variant.name, plan, args.ranks, others, str(no_gpu))
    summary = machine.describe_host() | {"device": plan.device, "world": args.ranks} | (facts or {})
    summary["environment"] = machine.environment()  # the variants' own are in their rows
    if args.json:
        report.write_json(args.json, summary, rows)
    if args.plot:
        plot.write_plot(args.plot, summary, rows)
    if not args.quiet:
        report.print_report(terminal.console(), summary, rows)
    return 0
