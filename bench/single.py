"""The benchmark inside one mpirun: command line to table, JSON and plot."""

from __future__ import annotations

import argparse

from lamport_xpu.bench import launch, machine, plot, report, terminal
from lamport_xpu.bench.launch import World
from lamport_xpu.bench.peers import Setup, find_peer
from lamport_xpu.bench.rows import Row
from lamport_xpu.bench.runner import Plan, Runner
from lamport_xpu.bench.timing import DISCIPLINES
from lamport_xpu.bench.units import parse_dtypes, parse_sizes
from lamport_xpu.bench.watchdog import Watchdog

DEFAULT_BACKENDS = {
    "cpu": "lamport,mpi,gloo,oneccl",
    "cuda": "lamport,flashinfer,flashinfer_overlap,vllm_custom,torch_symm_one_shot,torch_symm_two_shot,nccl",
    "xpu": "lamport,xccl",
}
DEFAULT_SIZES = "8,6144,1MiB"


def plan_of(args: argparse.Namespace, sizes: str = DEFAULT_SIZES, discipline: str = "both") -> Plan:
    """The command line's cells and budget, with defaults for what was not given; raises UsageError."""
    discipline = args.discipline or discipline
    return Plan(
        sizes=parse_sizes(args.sizes or sizes),
        dtypes=parse_dtypes(args.dtypes),
        disciplines=DISCIPLINES if discipline == "both" else (discipline,),
        device=args.device,
        rounds=args.rounds,
        seconds=args.seconds,
        stall_s=args.stall,
    )


def main(args: argparse.Namespace) -> int:
    """Every rank runs this; rank 0 alone prints and writes."""
    plan = plan_of(args)
    classes = [find_peer(name.strip()) for name in (args.backends or DEFAULT_BACKENDS[args.device]).split(",")]
    world = World.start()
    launch.select_gpu(plan.device)
    setup = Setup(world, plan.device, max_bytes=plan.max_bytes, cached_operations=args.cached_operations)
    speaker = world.rank == 0
    peers = [cls(setup) for cls in classes]
    with (
        Watchdog(world.rank, plan.stall_s) as watchdog,
        Runner(world, peers, watchdog, args.variant) as runner,
    ):
        facts = machine.describe(world, plan.device, runner.running)

        def save(rows: list[Row]) -> None:
            if speaker and args.json:
                report.write_json(args.json, facts, rows)

        with terminal.ProgressBar(enabled=speaker and not args.quiet) as progress:
            rows = runner.run(plan, progress, sink=save)
    if speaker and args.plot:
        plot.write_plot(args.plot, facts, rows)
    if speaker and not args.quiet:
        report.print_report(terminal.console(), facts, rows)
    return 0
