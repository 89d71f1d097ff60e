#!/usr/bin/env python3
"""Time all-reduce of several libraries at several sizes, against each other.

mpirun -n 2 bench/allreduce_sizes.py                    ours, MPI, Gloo and oneCCL
bench/allreduce_sizes.py --sweep -n 2                   one mpirun for every oneCCL variant
mpirun -n 2 bench/allreduce_sizes.py --tune             find and store the algorithm thresholds
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from lamport_xpu.bench import launch


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what is measured")
    what.add_argument("--sizes", metavar="LIST", help="bytes, or with a unit (8,6144,1MiB; to tune: 1KiB to 16MiB)")
    what.add_argument("--dtypes", default="fp32,fp16,bf16", metavar="LIST", help="(%(default)s)")
    what.add_argument(
        "--backends",
        metavar="LIST",
        help="(lamport,mpi,gloo,oneccl) also mpi_persistent, xccl, torch_ccl, or package.module:Class; "
        "on cuda (lamport,flashinfer,flashinfer_overlap,vllm_custom,torch_symm_one_shot,torch_symm_two_shot,nccl)",
    )
    what.add_argument("--discipline", choices=("stream", "synced", "both"), help="(both; to tune: synced)")
    what.add_argument("--device", choices=("cpu", "cuda", "xpu"), default="cpu", help="(%(default)s)")
    what.add_argument("--cached-operations", action="store_true", help="oneCCL: cache the operation (to_cache)")
    effort = parser.add_argument_group("effort")
    effort.add_argument("--rounds", type=int, default=50, metavar="N", help="rounds a cell (%(default)s)")
    effort.add_argument("--seconds", type=float, default=30, metavar="S", help="budget of the run (%(default)s)")
    effort.add_argument("--stall", type=float, default=120, metavar="S", help="end a cell that hangs (%(default)s)")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE")
    output.add_argument("--plot", type=Path, metavar="FILE.png")
    output.add_argument("--quiet", action="store_true", help="no table")
    output.add_argument("--variant", default=None, help=argparse.SUPPRESS)  # how a sweep names its runs
    modes = parser.add_argument_group("other modes")
    modes.add_argument("--tune", action="store_true", help="store one-shot, two-shot and library thresholds")
    modes.add_argument("--sweep", action="store_true", help="oneCCL variants, each in its own mpirun")
    modes.add_argument("-n", type=int, default=2, metavar="N", dest="ranks", help="ranks of a sweep (%(default)s)")
    modes.add_argument("--passes", type=int, default=2, help="rounds of a sweep over all variants (%(default)s)")
    modes.add_argument("--limit", type=float, default=180, metavar="S", help="time-out of a variant (%(default)s)")
    return parser


def main(argv: list[str]) -> int:
    script = Path(sys.argv[0]).name
    speaker = launch.is_rank_zero()
    with ExitStack() as silence:
        if not speaker:  # one rank complains about a bad command line
            nowhere = silence.enter_context(open(os.devnull, "w"))
            silence.enter_context(redirect_stdout(nowhere))
            silence.enter_context(redirect_stderr(nowhere))
        args = build_parser().parse_args(argv)
    if not args.sweep and not launch.launched():
        print(f"{script}: {launch.hint(sys.argv)}", file=sys.stderr)
        return 2
    if args.sweep and launch.launched():
        if speaker:
            print(f"{script}: a sweep starts its own ranks; run it without mpirun, with -n N", file=sys.stderr)
        return 2

    # Imported this late because whatever imports torch or MPI must come after pinning.
    if launch.launched():
        launch.pin()
    if args.sweep:
        from lamport_xpu.bench.sweep import main as mode
    elif args.tune:
        from lamport_xpu.bench.tune import main as mode
    else:
        from lamport_xpu.bench.single import main as mode
    from lamport_xpu.bench.units import UsageError

    try:
        return mode(args)
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
