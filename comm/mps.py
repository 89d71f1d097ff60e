"""CUDA's Multi-Process Service: what lets several processes use one GPU at the same time.

Without it the GPU gives each process a turn of some milliseconds, and a rank spins through its turn waiting for one
whose turn has not come. Ranks that have a GPU each do not need it.
"""

from __future__ import annotations

import os
from pathlib import Path

ADVICE = (
    "several ranks share a GPU and CUDA MPS is not running: they take turns, and a call lasts milliseconds. Start it "
    "with nvidia-cuda-mps-control -d (bench/with_mps.sh COMMAND does, and stops it again), or give each rank a GPU"
)


def running() -> bool:
    """Whether CUDA in this process would find an MPS daemon: its control pipe is where CUDA looks for it."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(folder, "control").exists()
