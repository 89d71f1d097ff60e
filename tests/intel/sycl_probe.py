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
from tests.tensor_at import ONE_API, TensorAt

SLOT_BYTES, SLICE_BYTES = 64 << 10, 32 << 10
DTYPES = ("float32", "float16", "bfloat16")
LAUNCHES = 4000
UNLIMITED = 2**62


def collectives(queue: Any, memory: int, status: int, world: int) -> Any:
    """Nothing executes, so one address may stand for every rank's memory."""
    limits = [(32 << 10, UNLIMITED)] * 3
    return _sycl.SyclCollectives(queue, [memory] * world, status, 0, SLOT_BYTES, SLICE_BYTES, limits, 64 << 20, 1.0)


def fused(engine: Any, memory: int) -> None:
    """One call of each, of each type, on memory that is cut into tensors one after the other."""
    for dtype in DTYPES:
        used = 0

        def tensor(*shape: int, of: str = dtype) -> TensorAt:
            nonlocal used
            made = TensorAt(memory + used, shape, of, ONE_API)
            used += -(-made.nbytes // 64) * 64
            return made

        tokens, hidden = 4, 3072
        rows = [tensor(tokens, hidden) for _ in range(5)]
        assert engine.add_all_reduce(rows[0], rows[1], rows[3])
        weight = tensor(hidden)
        engine.add_all_reduce_rms_norm(rows[0], rows[1], rows[2], weight, 1e-6, False, rows[3], rows[4])
        qkv, q, k = tensor(3, 1536 + 512), tensor(3, 1536), tensor(3, 256)
        engine.qk_rms_norm(qkv, tensor(1536), tensor(256), 1536, 256, 1e-6, q, k)
        shard = hidden // 4
        cache, taps = tensor(8, 4, 4, shard // 4), tensor(shard, 4)
        indices = [tensor(tokens, of="int64"), tensor(tokens, of="int64"), tensor(2, 4, of="int32")]
        sequences = tensor(tokens, of="int32")
        engine.rs_sconv_ag_norm(
            rows[0], rows[1], rows[2], taps, weight, 1e-6, cache, *indices, sequences, 0, rows[3], rows[4]
        )


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

        for world in (1, 2, 4, 8):
            begin = time.perf_counter()
            collectives(queue, address, status._pointer, world)  # builds all kernels for this world size
            took = time.perf_counter() - begin
            print(f"card {card} ({queue.device_name}): kernels of world {world} built in {took:.1f} s")

        engine = collectives(queue, address, status._pointer, 4)
        for call in range(LAUNCHES):
            engine.all_reduce_raw(address, address, 2 << (call % 18), call % 3)
        engine.wait()
        for _ in range(100):
            fused(engine, address)
        engine.wait()

        graph = _sycl.Graph(queue)
        graph.begin()
        for dtype in range(3):
            engine.all_reduce_raw(address, address, 6144, dtype)
            engine.all_reduce_raw(address, address, 1 << 20, dtype)
        fused(engine, address)
        graph.end()
        for _ in range(500):
            graph.replay()
        engine.wait()
        print(f"card {card}: {LAUNCHES} launches and 500 replays accepted")

        loose = dpctl.SyclQueue(f"level_zero:gpu:{card}")
        assert "in_order" in refusal(functools.partial(_sycl.Queue.at, loose.addressof_ref()))
    own = _sycl.Queue.create("gpu", cards - 1)
    own.wait()
    print(refusal(functools.partial(_sycl.Queue.create, "gpu", cards)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
