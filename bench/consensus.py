"""Agreement between ranks, outside all timing: any rank's no is every rank's no."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


class Consensus:
    """The few collective decisions a benchmark takes. Every method must be called by all ranks alike."""

    def __init__(self, mpi: MPI.Intracomm) -> None:
        self._mpi = mpi
        self.barrier = mpi.Barrier

    def reason(self, mine: str | None) -> str | None:
        """The first rank's objection, or None when no rank has one."""
        reasons = self._mpi.allgather(mine)
        for rank, reason in enumerate(reasons):
            if reason is not None:
                return reason if all(r == reason for r in reasons) else f"rank {rank}: {reason}"
        return None

    def most(self, values: np.ndarray) -> np.ndarray:
        """Elementwise maximum over ranks."""
        from mpi4py import MPI

        result = np.empty_like(values)
        self._mpi.Allreduce(values, result, MPI.MAX)
        return result

    def most_of(self, value: float) -> float:
        """Maximum over ranks of one number."""
        return float(self.most(np.array([value], np.float64))[0])

    def total(self, value: int) -> int:
        """Sum over ranks."""
        return int(self._mpi.allreduce(value))
