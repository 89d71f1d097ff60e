"""Lost peers on a GPU: named, within the time limit, however many calls are queued; and teardown after it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from lamport_xpu.comm import CollectiveTimeout, Communicator, errors
from tests.cuda.gpus import run_on_gpus

LIMIT = 2.0


def _gives_up(comm: Communicator, absent: int) -> None:
    began = time.monotonic()
    x = torch.ones(3072, device="cuda")
    for _ in range(100):  # all of them queued before the first has given up
        comm.all_reduce(x, out=x)
    torch.cuda.synchronize()
    took = time.monotonic() - began
    with pytest.raises(CollectiveTimeout, match=f"rank {absent}") as caught:
        comm.check()
    assert caught.value.peer == absent
    assert caught.value.nbytes == 3072 * 4
    assert LIMIT * 0.9 < took < 2 * LIMIT
    with pytest.raises(errors.ClosedError, match="abandoned"):
        comm.all_reduce(x)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_rank_that_never_launches_is_named(world: int) -> None:
    def body(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        if comm.rank == 1:
            time.sleep(2 * LIMIT)
        else:
            _gives_up(comm, absent=1)

    run_on_gpus(world, body, timeout=LIMIT)


def test_next_call_reports_it_too() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(2 * LIMIT)
            return
        x = torch.ones(8, device="cuda")
        comm.all_reduce(x)
        torch.cuda.synchronize()
        with pytest.raises(CollectiveTimeout, match="rank 1"):
            comm.all_reduce(x)

    run_on_gpus(2, body, timeout=LIMIT)


def test_killed_rank() -> None:
    """Whatever becomes of the survivor (MPS may end the other clients of a GPU with one that was killed), no hang."""

    def body(comm: Communicator) -> str:
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        try:
            comm.all_reduce(torch.ones(8, device="cuda"))
            torch.cuda.synchronize()
            comm.check()
        except (CollectiveTimeout, RuntimeError) as error:
            return type(error).__name__
        return "no error"

    with pytest.raises(pytest.fail.Exception, match="rank 1 ended without an answer"):
        run_on_gpus(2, body, timeout=LIMIT)
