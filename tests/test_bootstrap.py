"""The three ways in: MPI, torch.distributed (group and store), and a Unix socket (every other test)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import FileStore

from lamport_xpu.comm import Communicator, errors
from lamport_xpu.comm.bootstrap import TorchStoreBootstrap
from lamport_xpu.comm.policy import Thresholds
from tests.ranks import run_processes

MPI_RANK = """
import numpy as np
from mpi4py import MPI
from lamport_xpu.comm import Communicator
from lamport_xpu.comm.policy import Thresholds
world = MPI.COMM_WORLD
with Communicator.from_mpi(world, thresholds=Thresholds(64, 128)) as comm:
    for count in (3, 30, 1000):  # one-shot, two-shot, MPI itself
        x = np.full(count, comm.rank + 1, np.float32)
        assert (comm.all_reduce(x) == world.size * (world.size + 1) / 2).all()
        assert comm.all_reduce(x, out=x) is x
        assert (x == world.size * (world.size + 1) / 2).all()
print("rank", comm.rank, "done")
"""


@pytest.mark.parametrize("world", [1, 3])
def test_from_mpi(world: int) -> None:
    command = ["mpirun", "-n", str(world), sys.executable, "-c", MPI_RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == world


def test_from_torch_group(tmp_path: Path) -> None:
    def main(rank: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=rank, world_size=2)
        with Communicator.from_torch(thresholds=Thresholds(64, 128)) as comm:
            for count in (3, 30, 1000):  # one-shot, two-shot, torch.distributed itself
                x = torch.full((count,), float(rank + 1), dtype=torch.bfloat16)
                assert (comm.all_reduce(x) == 3).all()
                assert (x == rank + 1).all()
                assert comm.all_reduce(x, out=x) is x
                assert (x == 3).all()
        dist.destroy_process_group()

    run_processes(2, main)


def test_from_torch_store(tmp_path: Path) -> None:
    def main(rank: int) -> None:
        store = FileStore(str(tmp_path / "store"), 3)
        with Communicator.from_torch(store=store, rank=rank, world_size=3, timeout=20) as comm:
            assert (comm.all_reduce(np.ones(7, np.float16)) == 3).all()

    run_processes(3, main)


def test_absent_rank_is_named_by_the_store(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "store"), 2)
    bootstrap = TorchStoreBootstrap(store, 0, 2, timeout=0.3)
    with pytest.raises(errors.BootstrapTimeout, match="nothing from rank 1"):
        bootstrap.all_gather(b"here")


def test_store_needs_rank_and_world_size(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(ValueError, match="rank= and world_size="):
        Communicator.from_torch(store=store)
