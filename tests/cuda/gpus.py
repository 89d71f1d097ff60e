"""Ranks on GPUs, as forked processes. The parent never initialises CUDA: a forked child could not use it then."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from lamport_xpu.comm import Communicator, mps
from tests.ranks import run_processes


@cache
def gpu_count() -> int:
    """Asked by another process; see above."""
    question = "import torch; print(torch.cuda.device_count())"
    answer = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, timeout=120)
    return int(answer.stdout or 0)


def why_not() -> str | None:
    """Why the tests cannot run here, or None."""
    if importlib.util.find_spec("lamport_xpu._cuda") is None:
        return "lamport_xpu._cuda is not built: no nvcc was found when the package was"
    if gpu_count() == 0:
        return "no CUDA GPU here"
    if gpu_count() < 8 and not mps.running():
        return f"{mps.ADVICE}; make test-cuda starts it"
    return None


def run_on_gpus(world: int, function: Callable[..., Any], seconds: float = 100, **options: Any) -> list[Any]:
    """`function(communicator)` on `world` ranks, dealt out over the GPUs; their results in rank order."""
    gpus = gpu_count()
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "ranks.sock")

        def main(rank: int) -> Any:
            import torch

            torch.set_num_threads(1)
            torch.cuda.set_device(rank % gpus)
            with Communicator.from_local(rank, world, address, device="cuda", **{"timeout": 20, **options}) as comm:
                return function(comm)

        return run_processes(world, main, seconds=seconds)
