#!/usr/bin/env python3
"""Host cost of an all-reduce on a SYCL device: from entry to return, against a bare submit of an empty kernel.

One process plays all ranks against itself: its peers' slots are its own, so every packet it sends is the one it
waits for. On a GPU or the SYCL CPU device the result is checked; on Intel's driver without hardware nothing executes:

    python -m tests.intel.adapters -- bench/launch_cost.py --no-check     # both SYCL adapters, no GPU needed
    bench/launch_cost.py --device cpu
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import numpy as np

from lamport_xpu import _sycl
from lamport_xpu.comm.policy import UNLIMITED

SLOT_BYTES = 64 << 10
HEADER_BYTES = 4096
WARM_UP, ROUNDS = 200, 60


class Loopback:
    """A workspace of `world` ranks in one process: rank 0, and peers whose slots lie in its own memory."""

    def __init__(self, device: str, world: int) -> None:
        import dpctl
        import dpctl.memory

        self.owner = dpctl.SyclQueue(device, property="in_order")
        self.queue = _sycl.Queue.at(self.owner.addressof_ref())
        generation = world * SLOT_BYTES
        total = HEADER_BYTES + 2 * generation + world * SLOT_BYTES
        self.memory = dpctl.memory.MemoryUSMDevice(total, queue=self.owner)
        armed = np.full(total // 4, 0x80000000, dtype=np.uint32)
        armed[: HEADER_BYTES // 4] = 0
        self.memory.copy_from_host(armed.view(np.uint8))
        self.status = dpctl.memory.MemoryUSMHost(64, queue=self.owner)
        np.frombuffer(self.status, dtype=np.uint8)[:] = 0
        base = self.memory._pointer
        # Rank 0 writes slot 0 of a peer's memory. Moved up by r slots, that is slot r of its own.
        addresses = [base + rank * SLOT_BYTES for rank in range(world)]
        limits = [(UNLIMITED, UNLIMITED)] * 3
        self.collectives = _sycl.SyclCollectives(
            self.queue, addresses, self.status._pointer, 0, SLOT_BYTES, SLOT_BYTES // 2, limits, 1 << 20, 1.0
        )


def median_us(seconds: list[float], calls: int) -> float:
    return statistics.median(seconds) / calls * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--count", type=int, default=3072, help="elements, float16")
    parser.add_argument("--calls", type=int, default=100, help="launches between two waits")
    parser.add_argument("--limit", type=float, help="fail if all_reduce / empty exceeds this")
    parser.add_argument("--no-check", action="store_true", help="for drivers that execute nothing")
    arguments = parser.parse_args()

    import dpctl.memory

    loopback = Loopback(arguments.device, arguments.world)
    collectives, queue, calls = loopback.collectives, loopback.queue, arguments.calls
    nbytes = 2 * arguments.count
    x = dpctl.memory.MemoryUSMDevice(nbytes, queue=loopback.owner)
    out = dpctl.memory.MemoryUSMDevice(nbytes, queue=loopback.owner)
    x.copy_from_host(np.ones(arguments.count, dtype=np.float16).view(np.uint8))

    empty, native, python = [], [], []
    _sycl.time_empty_launches(queue, WARM_UP)
    collectives.time_launches(x._pointer, out._pointer, nbytes, WARM_UP)
    collectives.wait()
    for _ in range(ROUNDS):  # interleaved, so that the machine's moods fall on all alike
        empty.append(_sycl.time_empty_launches(queue, calls))
        queue.wait()
        native.append(collectives.time_launches(x._pointer, out._pointer, nbytes, calls))
        collectives.wait()
        begin = time.perf_counter()
        for _ in range(calls):
            collectives.all_reduce_raw(x._pointer, out._pointer, nbytes, 1)
        python.append(time.perf_counter() - begin)
        collectives.wait()

    if arguments.no_check:
        wrong = "n/a"
    else:
        result = np.empty(nbytes, dtype=np.uint8)
        out.copy_to_host(result)
        wrong = str(int((result.view(np.float16) != arguments.world).sum()))
    adapter = "v1" if os.environ.get("SYCL_UR_USE_LEVEL_ZERO_V2") == "0" else "default"
    ratio = statistics.median(native) / statistics.median(empty)
    print(f"# {queue.device_name}, adapter {adapter}, {arguments.world} ranks: host time of a launch")
    columns = ("empty", "native", "python")
    names = " ".join(f"{name:>8}" for name in (*columns, "ratio", "#wrong"))
    units = " ".join(f"{'(us)':>8}" for _ in columns)
    times = " ".join(f"{median_us(seconds, calls):8.2f}" for seconds in (empty, native, python))
    print(f"#{'size':>9} {'count':>9} {'type':>6} {'redop':>6} {names}")
    print(f"#{'(B)':>9} {'(elem)':>9} {'':>6} {'':>6} {units}")
    print(f" {nbytes:9d} {arguments.count:9d} {'half':>6} {'sum':>6} {times} {ratio:8.2f} {wrong:>8}")
    if wrong not in ("0", "n/a"):
        return 1
    if arguments.limit is not None and ratio > arguments.limit:
        print(f"ratio {ratio:.2f} exceeds {arguments.limit}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
