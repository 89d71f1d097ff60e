#!/usr/bin/env python3
"""Time the fused collectives against the separate steps they replace, on our own all-reduce and on others'.

mpirun -n 2 bench/fused_ops.py                          decode shapes of MiniMax-M2 and Inkling
mpirun -n 4 bench/fused_ops.py --tokens 1,16 --json fused.json --plot fused.png
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamport_xpu.bench import launch

if TYPE_CHECKING:
    from lamport_xpu.bench.fused_runner import FusedPlan


_STOCK = {"cpu": "gloo,mpi", "cuda": "flashinfer,nccl"}


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--ops", metavar="LIST", help="(all) " + "qk_rms_norm, add_all_reduce, add_all_reduce_rms_norm, ...")
    add("--models", default="minimax-m2,inkling", metavar="LIST", help="(%(default)s)")
    add("--tokens", default="1,2,4,8,16,64", metavar="LIST", help="(%(default)s)")
    add("--dtype", default="fp16", help="fp32, fp16 or bf16 (%(default)s)")
    add("--stock", metavar="LIST", help="other all-reduces, as in allreduce_sizes.py (gloo,mpi; cuda: flashinfer,nccl)")
    add("--discipline", choices=("stream", "synced", "both"), default="stream", help="(%(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="(%(default)s)")
    add("--rounds", type=int, default=50, metavar="N", help="rounds a cell (%(default)s)")
    add("--seconds", type=float, default=60, metavar="S", help="budget of the run (%(default)s)")
    add("--stall", type=float, default=120, metavar="S", help="end a cell that hangs (%(default)s)")
    add("--json", type=Path, metavar="FILE")
    add("--plot", type=Path, metavar="FILE.png")
    add("--quiet", action="store_true", help="no table")
    return parser


def plan_of(args: argparse.Namespace) -> FusedPlan:
    """The command line's cells and budget; raises UsageError."""
    from lamport_xpu.bench.fused_cases import CASES, MODELS
    from lamport_xpu.bench.fused_runner import FusedPlan
    from lamport_xpu.bench.peers import find_peer
    from lamport_xpu.bench.timing import DISCIPLINES
    from lamport_xpu.bench.units import UsageError, parse_dtypes

    def chosen(text: str, known: dict[str, Any], what: str) -> list[Any]:
        for name in text.split(","):
            if name not in known:
                raise UsageError(f"{what} {name!r}: expected one or more of {', '.join(known)}")
        return [known[name] for name in text.split(",")]

    try:
        tokens = [int(text) for text in args.tokens.split(",")]
    except ValueError:
        tokens = []
    if not tokens or min(tokens) < 1:
        raise UsageError(f"tokens {args.tokens!r}: expected positive whole numbers")
    (dtype,) = parse_dtypes(args.dtype) if "," not in args.dtype else (None,)
    if dtype is None:
        raise UsageError("--dtype takes one type")
    stock = _STOCK[args.device] if args.stock is None else args.stock
    return FusedPlan(
        cases=chosen(args.ops, CASES, "op") if args.ops else list(CASES.values()),
        models=chosen(args.models, MODELS, "model"),
        tokens=tokens,
        dtype=dtype,
        stock=[find_peer(name) for name in stock.split(",") if name],
        disciplines=DISCIPLINES if args.discipline == "both" else (args.discipline,),
        device=args.device,
        rounds=args.rounds,
        seconds=args.seconds,
        stall_s=args.stall,
    )


def run(args: argparse.Namespace) -> int:
    """Every rank runs this; rank 0 alone prints and writes."""
    from lamport_xpu.bench import fused_report, terminal
    from lamport_xpu.bench.fused_runner import run_plan
    from lamport_xpu.bench.launch import World

    plan = plan_of(args)
    world = World.start()
    launch.select_gpu(args.device)
    speaker = world.rank == 0
    with terminal.ProgressBar(enabled=speaker and not args.quiet) as progress:
        facts, rows = run_plan(world, plan, progress)
    if speaker and args.json:
        fused_report.write_json(args.json, facts, rows)
    if speaker and args.plot:
        fused_report.write_plot(args.plot, facts, rows)
    if speaker and not args.quiet:
        fused_report.print_report(terminal.console(), facts, rows)
    return 0


def main(argv: list[str]) -> int:
    script = Path(sys.argv[0]).name
    speaker = launch.is_rank_zero()
    with ExitStack() as silence:
        if not speaker:  # one rank complains about a bad command line
            nowhere = silence.enter_context(open(os.devnull, "w"))
            silence.enter_context(redirect_stdout(nowhere))
            silence.enter_context(redirect_stderr(nowhere))
        args = build_parser().parse_args(argv)
    if not launch.launched():
        print(f"{script}: {launch.hint(sys.argv)}", file=sys.stderr)
        return 2
    launch.pin()  # before anything imports torch or MPI
    from lamport_xpu.bench.units import UsageError

    try:
        return run(args)
    except UsageError as error:
        if speaker:
            print(f"{script}: {error}", file=sys.stderr)
        return 2
    except Exception:
        # The other ranks may be waiting for this one in a collective: end them too.
        traceback.print_exc()
        launch.abort()
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
