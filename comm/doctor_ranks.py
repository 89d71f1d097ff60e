"""What the doctor tries with several ranks: IPC between every pair, then the functional probe.

Under mpirun the ranks are MPI's; otherwise the doctor starts one process a GPU (two where there are fewer).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamport_xpu.comm import policy
from lamport_xpu.comm.bootstrap import Bootstrap, LocalBootstrap, MpiBootstrap
from lamport_xpu.comm.communicator import Communicator
from lamport_xpu.comm.doctor_checks import Finding
from lamport_xpu.comm.errors import LamportError
from lamport_xpu.comm.workspace import MAX_WORLD, Workspace

TIMEOUT = 8.0
#: Makes a fresh bootstrap for a purpose; collective, and called for the same purposes in the same order.
MakeBootstrap = Callable[[str], Bootstrap]


@dataclass
class RankReport:
    """What one rank saw."""

    rank: int
    findings: list[Finding] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)  # IPC mode to every rank; empty where not tried
    gpu: str = ""


def launched_by_mpi() -> bool:
    """Whether mpirun (Hydra, Open MPI, PMIx) started this process together with others."""
    sizes = (os.environ.get(name, "1") for name in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE"))
    return any(size.isdigit() and int(size) > 1 for size in sizes)


def mpi_bootstrap(purpose: str) -> Bootstrap:
    from mpi4py import MPI

    return MpiBootstrap(MPI.COMM_WORLD, TIMEOUT)


def try_as_rank(rank: int, make_bootstrap: MakeBootstrap, gpu_count: int) -> RankReport:
    """One rank's part. Collective: all ranks make the same attempts, whatever each of them finds."""
    report = RankReport(rank)
    with_gpus = min(_gather(make_bootstrap, "count", gpu_count)) > 0
    if with_gpus:
        opened = _try_ipc(report, make_bootstrap, rank % gpu_count)
        if min(_gather(make_bootstrap, "opened", int(opened))):
            _try_probe(report, make_bootstrap, "xpu")
    _try_probe(report, make_bootstrap, "cpu")
    return report


def _gather(make_bootstrap: MakeBootstrap, purpose: str, value: int) -> list[int]:
    bootstrap = make_bootstrap(purpose)
    gathered = [int(data) for data in bootstrap.all_gather(str(value).encode())]
    bootstrap.close()
    return gathered


def _try_ipc(report: RankReport, make_bootstrap: MakeBootstrap, device: int) -> bool:
    from lamport_xpu.comm.level_zero import LevelZeroWorkspace

    started = time.monotonic()
    try:
        bootstrap = make_bootstrap("ipc")
        chunks = policy.CHUNKS["xpu"]
        native = LevelZeroWorkspace(bootstrap.rank, bootstrap.world_size, chunks, TIMEOUT, device=device)
        workspace = Workspace(bootstrap, native, "xpu", chunks)
        report.modes = [mode for mode, _ in native.links]
        report.gpu = native.device["pci"]
        reasons = {reason for mode, reason in native.links if mode != "own"}
        workspace.close()
        bootstrap.close()
    except LamportError as error:
        report.findings.append(failure("GPU memory between ranks", error))
        return False
    used = ", ".join(sorted(set(report.modes) - {"own"}))
    detail = f"all peers' cookies arrived in {time.monotonic() - started:.2f} s, IPC mode {used}"
    report.findings.append(Finding("GPU memory between ranks", "OK", f"{detail} ({'; '.join(sorted(reasons))})"))
    if native.warnings:
        remedy = "restart the process before using this GPU again; see dmesg"
        report.findings.append(Finding("GPU teardown", "warn", "; ".join(native.warnings), remedy))
    return True


def _try_probe(report: RankReport, make_bootstrap: MakeBootstrap, device: str) -> None:
    name = f"all-reduce on {device}"
    try:
        started = time.monotonic()
        Communicator(make_bootstrap(f"probe-{device}"), device=device, timeout=TIMEOUT).close()
    except LamportError as error:
        report.findings.append(failure(name, error))
        return
    report.findings.append(Finding(name, "OK", f"set up and sums correct in {time.monotonic() - started:.2f} s"))


def failure(name: str, error: LamportError) -> Finding:
    """Texts of the package read 'cause. Remedy.' or 'cause; remedy'."""
    text = str(error)
    cause, mark, remedy = text.partition(". ")
    if not mark:
        cause, _, remedy = text.partition("; ")
    return Finding(name, "FAIL", f"{type(error).__name__}: {cause or text}", remedy or "see docs/intel.md")


def start_ranks(gpu_count: int) -> list[RankReport]:
    """Runs `try_as_rank` in processes of our own, one a GPU, and waits for them."""
    world_size = min(max(gpu_count, 2), MAX_WORLD)
    usable = gpu_count if gpu_count > 1 else 0
    with tempfile.TemporaryDirectory(prefix="lamport-doctor-") as folder:
        command = [
            sys.executable,
            "-m",
            "lamport_xpu.comm.doctor_ranks",
            folder,
            str(world_size),
            str(usable),
        ]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(world_size)
        ]
        try:
            return [_collect(rank, process) for rank, process in enumerate(processes)]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _collect(rank: int, process: subprocess.Popen[str]) -> RankReport:
    try:
        out, err = process.communicate(timeout=4 * TIMEOUT)
    except subprocess.TimeoutExpired:
        detail = f"no answer within {4 * TIMEOUT:g} s"
        return RankReport(rank, [Finding("rank process", "FAIL", detail, "the GPU driver is stuck; see dmesg")])
    if process.returncode == 0:
        data = json.loads(out)
        findings = [Finding(**finding) for finding in data.pop("findings")]
        return RankReport(findings=findings, **data)
    code = process.returncode
    how = f"died of {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
    last = err.strip().splitlines()[-1:] or ["no output"]
    return RankReport(rank, [Finding("rank process", "FAIL", f"{how}: {last[0]}", "report it with this output")])


def report_as_json(report: RankReport) -> dict[str, Any]:
    return {
        "rank": report.rank,
        "modes": report.modes,
        "gpu": report.gpu,
        "findings": [finding.__dict__ for finding in report.findings],
    }


def main() -> None:
    """A process started by start_ranks()."""
    folder, world_size, gpu_count, rank = Path(sys.argv[1]), *map(int, sys.argv[2:5])

    def local(purpose: str) -> Bootstrap:
        return LocalBootstrap(rank, world_size, str(folder / purpose), TIMEOUT)

    print(json.dumps(report_as_json(try_as_rank(rank, local, gpu_count))))


if __name__ == "__main__":
    main()
