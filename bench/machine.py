"""What a result was measured on; without it a latency means nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lamport_xpu.bench.launch import World
from lamport_xpu.bench.peers import Peer


def cpu_model() -> str:
    """The processor's name as the kernel reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def describe_host() -> dict[str, Any]:
    """The parts that do not depend on the ranks."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def environment() -> dict[str, str]:
    """The variables that change what is measured."""
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(("CCL_", "LAMPORT_"))}


def describe(world: World, device: str, peers: Iterable[Peer]) -> dict[str, Any]:
    """The `machine` object of the JSON file."""
    import torch

    return (
        describe_host()
        | {
            "device": device,
            "world": world.size,
            "pinning": {str(rank): core for rank, core in enumerate(world.cores)},
            "versions": {"torch": f"torch {torch.__version__}"} | {p.name: v for p in peers if (v := p.version())},
            "environment": environment(),
        }
        | (describe_gpus(world) if device == "cuda" else {})
    )


def describe_gpus(world: World) -> dict[str, Any]:
    """Which GPU each rank uses, and whether ranks that share one do so at the same time."""
    import torch

    from lamport_xpu.comm import mps

    here = torch.cuda.get_device_properties(torch.cuda.current_device())
    ranks = world.mpi.allgather((here.name, str(here.uuid)))
    numbers = {uuid: number for number, uuid in enumerate(dict.fromkeys(uuid for _, uuid in ranks))}
    return {
        "gpu": here.name,
        "gpu_of_rank": {str(rank): numbers[uuid] for rank, (_, uuid) in enumerate(ranks)},
        "mps": mps.running(),
        "cuda": torch.version.cuda,
    }


def describe_pinning(pinning: dict[str, int]) -> str:
    """One phrase: "rank 0 on core 0, rank 1 on core 1", shortened where there are many."""
    if not pinning:
        return "unknown"
    cores = list(pinning.values())
    shared = ", cores shared" if len(set(cores)) < len(cores) else ""
    if len(cores) > 4:
        return f"ranks 0-{len(cores) - 1} on cores {','.join(map(str, cores))}{shared}"
    return ", ".join(f"rank {rank} on core {core}" for rank, core in pinning.items()) + shared
