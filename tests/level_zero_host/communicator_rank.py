"""One rank of test_communicator.py: Communicator(device="xpu") on the test driver's memory, kernels on the CPU device.

python -m tests.level_zero_host.communicator_rank RANK WORLD_SIZE SOCKET_PATH
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from lamport_xpu import _sycl
from lamport_xpu.comm import CollectiveTimeout, Communicator, LamportError, reference
from lamport_xpu.comm.policy import Thresholds
from tests import fused_cases

SIZES = (2, 3, 8, 3072, 3073, 40_000)


def torch_operator(comm: Communicator, queue: Any) -> None:
    """The operators know a communicator by number, whatever its device."""
    routed, shared = torch.full((33,), comm.rank + 1.0), torch.ones(33)
    handle = comm.torch_handle  # loads the operators
    out = torch.ops.lamport_xpu.add_all_reduce(routed, shared, handle)
    queue.wait()
    assert (out == sum(rank + 2 for rank in range(comm.world_size))).all(), out


def main() -> None:
    rank, world, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    report: dict[str, object] = {"rank": rank, "error": None}
    try:
        queue = _sycl.Queue.create("cpu")
        for thresholds in (Thresholds(1 << 30), Thresholds(0)):
            options = {"device": "xpu", "queue": queue, "thresholds": thresholds, "timeout": 20.0}
            with Communicator.from_local(rank, world, address, **options) as comm:
                for call, count in enumerate(SIZES):
                    for dtype in ("float32", "float16"):
                        inputs = [
                            np.random.default_rng([r, call]).standard_normal(count).astype(dtype) for r in range(world)
                        ]
                        x = inputs[rank].copy()
                        out = comm.all_reduce(x)
                        comm.all_reduce(x, out=x)
                        queue.wait()
                        for result in (out, x):
                            expected = reference.all_reduce(inputs, dtype)
                            np.testing.assert_array_equal(reference.bits(result, dtype), expected)
                fused_cases.add_all_reduce(comm, queue.wait)
                if thresholds.one_shot_max_bytes:
                    report["errors"] = fused_cases.everything(comm, queue.wait)
                    torch_operator(comm, queue)
        with Communicator.from_local(rank, world, address, device="xpu", queue=queue, timeout=4.0) as comm:
            if rank != 0:
                comm.all_reduce(np.ones(8, np.float32))
                queue.wait()
                try:
                    comm.check()
                except CollectiveTimeout as error:
                    report["timeout"] = error.peer
    except LamportError as error:
        report |= {"error": type(error).__name__, "text": str(error)}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
