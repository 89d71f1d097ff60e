"""A few calls of every kind on two ranks, for compute-sanitizer: python -m tests.cuda.short_run. Prints "fine"."""

from __future__ import annotations

import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from lamport_xpu.comm.policy import Thresholds


def main(rank: int, address: str) -> None:
    import torch

    from lamport_xpu.comm import Communicator

    torch.cuda.set_device(rank % torch.cuda.device_count())
    thresholds = Thresholds(16 << 10)
    with Communicator.from_local(rank, 2, address, device="cuda", timeout=60, thresholds=thresholds) as comm:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for count in (1, 7, 3072, 3073, 20_001):
                for skip in (0, 1):
                    x = torch.ones(count + skip, dtype=dtype, device="cuda")[skip:]
                    assert (comm.all_reduce(x) == 2).all()
                    assert (comm.add_all_reduce(x, x) == 4).all()
            for tokens, hidden in ((1, 3072), (3, 100)):
                x = torch.ones(tokens, hidden, dtype=dtype, device="cuda")
                normed, residual = comm.add_all_reduce_rms_norm(x, x, x, x[0], 1e-6)
                assert (residual == 5).all()
                torch.testing.assert_close(normed, torch.ones_like(x))
                q, k = comm.qk_rms_norm(x, x[0, : hidden // 2], x[0, : hidden // 4], hidden // 2, hidden // 4, 1e-6)
                torch.testing.assert_close(q, torch.ones_like(q))
                torch.testing.assert_close(k, torch.ones_like(k))
        comm.check()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "ranks.sock")
        ranks = [get_context("spawn").Process(target=main, args=(rank, address)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    if any(process.exitcode for process in ranks):
        sys.exit(1)
    print("fine")
