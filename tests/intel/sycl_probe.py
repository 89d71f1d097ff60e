"""What a SYCL process asks of Intel's driver, on null hardware: build kernels, launch thousands, record graphs.

Started by test_sycl_on_intel_driver.py, once for each adapter of the SYCL runtime.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from lamport_xpu import _sycl
from lamport_xpu.comm.errors import QueueError

SLOT_BYTES, SLICE_BYTES = 64 << 10, 32 << 10
LAUNCHES = 4000
UNLIMITED = 2**62


def collectives(queue: Any, memory: int, status: int, world: int) -> Any:
    """Nothing executes, so one address may stand for every rank's memory."""
    limits = [(32 << 10, UNLIMITED)] * 3
    return _sycl.SyclCollectives(queue, [memory] * world, status, 0, SLOT_BYTES, SLICE_BYTES, limits, 64 << 20, 1.0)


def refusal(action: Callable[[], Any]) -> str:
    try:
        action()
    except QueueError as error:
        return str(error)
    raise AssertionError("accepted")


def main(cards: int) -> None:
    import dpctl
    import dpctl.memory

    for card in range(cards):
        owner = dpctl.SyclQueue(f"level_zero:gpu:{card}", property="in_order")
        queue = _sycl.Queue.at(owner.addressof_ref())
        context, device = queue.level_zero_handles
        assert context, "no native context"
        assert device, "no native device"
        memory = dpctl.memory.MemoryUSMDevice(1 << 20, queue=owner)
        status = dpctl.memory.MemoryUSMHost(64, queue=owner)
        memoryview(status)[:] = bytes(64)
        address = memory._pointer

        begin = time.perf_counter()
        for world in (2, 4, 8):
            collectives(queue, address, status._pointer, world)  # builds all six kernels for this world size
        print(f"card {card} ({queue.device_name}): 18 kernels built in {time.perf_counter() - begin:.1f} s")

        engine = collectives(queue, address, status._pointer, 4)
        for call in range(LAUNCHES):
            engine.all_reduce_raw(address, address, 2 << (call % 18), call % 3)
        engine.wait()

        graph = _sycl.Graph(queue)
        graph.begin()
        for dtype in range(3):
            engine.all_reduce_raw(address, address, 6144, dtype)
            engine.all_reduce_raw(address, address, 1 << 20, dtype)
        graph.end()
        for _ in range(500):
            graph.replay()
        engine.wait()
        print(f"card {card}: {LAUNCHES} launches and 500 replays of 6 accepted")

        loose = dpctl.SyclQueue(f"level_zero:gpu:{card}")
        assert "in_order" in refusal(functools.partial(_sycl.Queue.at, loose.addressof_ref()))
    own = _sycl.Queue.create("gpu", cards - 1)
    own.wait()
    print(refusal(functools.partial(_sycl.Queue.create, "gpu", cards)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
