"""Where this process stands among the ranks, and which core it runs on.

Imported before torch, MPI or any peer: a library's threads inherit the affinity of the thread that starts
them, and oneCCL decides by the number of cores it may use whether to start a polling worker at all (see
peers/ccl_environment.py).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

# First match wins. The last two are global ranks: the same thing on one host, which is all we pin for.
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
               "PMI_RANK", "PMIX_RANK")  # fmt: skip
_GLOBAL_RANK = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def _from_environment(names: tuple[str, ...]) -> int | None:
    return next((int(os.environ[name]) for name in names if name in os.environ), None)


def launched() -> bool:
    """True under mpirun or an equivalent."""
    return _from_environment(_GLOBAL_RANK) is not None


def is_rank_zero() -> bool:
    """Known before MPI is up, so that only one rank complains about a bad command line."""
    return (_from_environment(_GLOBAL_RANK) or 0) == 0


def mpirun() -> str:
    """The launcher that belongs to this interpreter (its own bin folder first, then PATH)."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else "mpirun"


def hint(argv: list[str], ranks: int = 2) -> str:
    """What to type instead of starting one process by hand."""
    return f"one process alone has nobody to reduce with; type\n  mpirun -n {ranks} {shlex.join(argv)}"


def abort() -> None:
    """End all ranks of this run, where MPI is up."""
    mpi = sys.modules.get("mpi4py.MPI")
    if launched() and mpi is not None:
        mpi.COMM_WORLD.Abort(1)


def pin() -> int:
    """Keep this process on one core of those it was given, by local rank, round robin; returns the core.

    The launcher may already have pinned each rank to a core (then this keeps it) or to all of them (then this
    spreads the ranks). With more ranks than cores, cores are shared.
    """
    cores = sorted(os.sched_getaffinity(0))
    core = cores[(_from_environment(_LOCAL_RANK) or 0) % len(cores)]
    os.sched_setaffinity(0, {core})
    return core


def select_gpu(device: str) -> None:
    """Makes this rank's GPU torch's current one: ranks are dealt out over the GPUs there are."""
    if device != "cuda":
        return
    import torch

    from lamport_xpu.bench.units import UsageError

    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA GPU")
    torch.cuda.set_device((_from_environment(_LOCAL_RANK) or 0) % torch.cuda.device_count())


@dataclass(frozen=True)
class World:
    """All ranks of the run. `cores[r]` is where rank r is pinned."""

    mpi: MPI.Intracomm
    cores: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.mpi.rank

    @property
    def size(self) -> int:
        return self.mpi.size

    def from_rank_zero(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank; when it raises there, every rank raises."""
        result: tuple[T | None, str | None] = (None, None)
        if self.rank == 0:
            try:
                result = make(), None
            except Exception as raised:  # noqa: BLE001 - the others must not be left waiting
                result = None, f"{type(raised).__name__}: {raised}"
        value, message = self.mpi.bcast(result)
        if message is not None:
            raise RuntimeError(f"rank 0: {message}")
        return cast(T, value)

    @classmethod
    def start(cls) -> World:
        """Pin (once more does no harm), then bring up MPI and torch, in that order."""
        core = pin()
        import torch
        from mpi4py import MPI

        torch.set_num_threads(1)
        # Own communicator: a peer that fails half-way through an operation cannot be mistaken for the
        # harness.
        comm = MPI.COMM_WORLD.Dup()
        return cls(comm, tuple(comm.allgather(core)))
