#!/usr/bin/env python3
"""The floor under every all-reduce: an empty kernel in the same kind of graph, and a store-to-load trip.

mpirun -n 2 bench/cuda_floor.py [--json FILE]

The empty kernel is launched by all ranks at once, as a collective is; the trip is between ranks 0 and 1.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lamport_xpu.bench import launch

CALLS, ROUNDS, TRIPS = 1000, 30, 2000


def empty_kernel_us(mpi: Any) -> float:
    """Median of the slowest rank, for a grid such as 6 KB takes."""
    import torch

    from lamport_xpu.bench.cuda_clock import CudaClock
    from lamport_xpu.bench.peers.cuda_library import library

    function = library().function("floor_empty", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)

    def call() -> None:
        function(6, 64, torch.cuda.current_stream().cuda_stream)

    call()
    timed = CudaClock().prepare(call, CALLS)
    samples = []
    for _ in range(ROUNDS):
        mpi.Barrier()
        samples.append(max(mpi.allgather(timed())) / CALLS * 1e6)
    return median(samples)


def trip_us(world: launch.World) -> float:
    """One way: half a round trip."""
    import torch

    from lamport_xpu.bench.peers.cuda_library import library

    function = library().function(
        "floor_ping_pong", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
    )
    samples = []
    for _ in range(5):
        memory = library().shared_memory(world, 4096)  # zeroed: a round of the game needs fresh memory
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        world.mpi.Barrier()
        start.record()
        if world.rank < 2:
            stream = torch.cuda.current_stream().cuda_stream
            function(memory[world.rank], memory[1 - world.rank], int(world.rank == 0), TRIPS, stream)
        end.record()
        end.synchronize()
        # The longer of the two includes waiting for the other process to start.
        samples.append(min(world.mpi.allgather(start.elapsed_time(end))[:2]) * 1e3 / TRIPS / 2)
    return median(samples)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if not launch.launched():
        print(launch.hint(sys.argv), file=sys.stderr)
        return 2
    world = launch.World.start()
    launch.select_gpu("cuda")
    from lamport_xpu.bench import machine

    facts = machine.describe(world, "cuda", [])
    report = partial(round, ndigits=3)
    figures = {"empty_kernel_us": report(empty_kernel_us(world.mpi)), "store_to_load_us": report(trip_us(world))}
    if world.rank == 0:
        print(f"world {world.size}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))
        if args.json:
            args.json.write_text(json.dumps({"machine": facts, **figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
