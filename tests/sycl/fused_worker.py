"""One rank of the SYCL-on-CPU tests of the fused collectives; see worker.py."""

from __future__ import annotations

import argparse
import sys
import time

import pytest
import torch

from lamport_xpu.comm.bootstrap import LocalBootstrap
from lamport_xpu.comm.errors import ClosedError, CollectiveTimeout
from lamport_xpu.comm.fused import FusedCollectives
from lamport_xpu.comm.policy import UNLIMITED, ChunkSizes
from tests import fused_cases
from tests.sycl.worker import CALL_TIMEOUT_S, Rank, run
from tests.test_fused import ALLOWED

#: A slot holds a row of 4096 fp32 elements, and few of them.
CHUNKS = ChunkSizes(slot_bytes=40 << 10, slice_bytes=24 << 10)


class Fused(FusedCollectives):
    """The methods of Communicator over one rank's SYCL kernels."""

    def __init__(self, ranks: Rank) -> None:
        self.rank, self.world_size = ranks.rank, ranks.world
        self._engine, self._check_call = ranks.sycl, None


def fused(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """Every fused collective against its oracle, one-shot and two-shot, chunks smaller than a call."""
    for one_shot_max in (UNLIMITED, 0):
        ranks = Rank(bootstrap, one_shot_max, arguments.yielding, CALL_TIMEOUT_S * arguments.patience, CHUNKS)
        comm, begin = Fused(ranks), time.perf_counter()
        if one_shot_max:
            errors = fused_cases.everything(comm, ranks.sycl.wait)
            scales = bootstrap.all_gather(fused_cases.scales_agree(comm, ranks.sycl.wait))
            assert len(set(scales)) == 1, "scales differ between ranks"
        else:
            fused_cases.add_all_reduce(comm, ranks.sycl.wait)
        if ranks.rank == 0:
            took = time.perf_counter() - begin
            print(f"fused: {ranks.world} ranks, worst errors {errors} ulp, {took:.1f} s")
        ranks.bootstrap.barrier()
        for workspace in ranks.workspaces:
            workspace.close()


def sub_groups(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """The kernels that GPUs get, built with sub-groups."""
    ranks = Rank(bootstrap, UNLIMITED, False, CALL_TIMEOUT_S * arguments.patience, CHUNKS)
    worst = fused_cases.sums_over_sub_groups(Fused(ranks), ranks.sycl.wait)
    assert worst <= ALLOWED, worst
    if ranks.rank == 0:
        print(f"sub-groups: worst error {worst} ulp")
    ranks.close()


def late(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """Rank 0 never calls: the others must name it and the collective, and stay refused."""
    ranks = Rank(bootstrap, UNLIMITED, arguments.yielding, 1.0, CHUNKS)
    comm, x = Fused(ranks), torch.ones(2, 24)
    if ranks.rank != 0:
        if arguments.op == "qk_rms_norm":
            comm.qk_rms_norm(x, x[0, :8].clone(), x[0, :8].clone(), 8, 8, 1e-6)
        elif arguments.op == "add_all_reduce":
            comm.add_all_reduce(x, x.clone())
        else:
            comm.add_all_reduce_rms_norm(x, None, x.clone(), x[0].clone(), 1e-6)
        with pytest.raises(CollectiveTimeout) as caught:
            ranks.sycl.wait()
        assert (caught.value.op, caught.value.peer) == (arguments.op, 0)
        print(f"rank {ranks.rank}: {caught.value}")
        with pytest.raises(ClosedError, match="abandoned"):
            comm.add_all_reduce(x, x.clone())
    ranks.close()


if __name__ == "__main__":
    run({"fused": fused, "sub_groups": sub_groups, "late": late})
    sys.stdout.flush()
