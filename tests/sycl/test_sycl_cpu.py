"""Leg a: the SYCL build of the kernels computes the right thing, on the SYCL CPU device and POSIX shared memory.

Not a run on an Intel GPU, and no speed is claimed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sycl.environment import missing, one_worker

REPOSITORY = Path(__file__).parents[2]
FUSED = ("fused", "sub_groups", "late")
LIMIT_S = 240.0

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def run_ranks(scenario: str, world: int, folder: Path, pinned: bool, *options: str) -> str:
    """Output of all ranks. Each gets one worker thread; none outlives the limit."""
    environment = os.environ | one_worker()
    cores = sorted(os.sched_getaffinity(0))
    processes = []
    for rank in range(world):
        worker = "tests.sycl.fused_worker" if scenario in FUSED else "tests.sycl.worker"
        command = [sys.executable, "-m", worker, scenario, str(rank), str(world), str(folder / "meet"), *options]
        if pinned:
            command += ["--core", str(cores[rank % len(cores)])]
        processes.append(
            subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = []
    deadline = time.monotonic() + LIMIT_S
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                outputs.append(f"[stopped at the limit] {process.communicate()[0]}")
    text = "\n".join(outputs)
    assert all(process.returncode == 0 for process in processes), text
    return text


def test_gpu_kernels_of_two_pinned_ranks(tmp_path: Path) -> None:
    """The very SPIR-V that GPUs get. It spins without pause, so each rank needs a core of its own."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two spinning ranks need two cores")
    # These kernels count polls, of which a CPU does many more in a second than a GPU.
    text = run_ranks("results", 2, tmp_path, True, "--patience", "100")
    print(text)
    assert "one-shot" in text
    assert "two-shot" in text


@pytest.mark.parametrize("world", [2, 3, 4])
def test_yielding_kernels_of_more_ranks_than_cores(tmp_path: Path, world: int) -> None:
    text = run_ranks("results", world, tmp_path, True, "--yielding", "--rounds", "1")
    print(text)
    assert "two-shot" in text


def test_recorded_graph_replays(tmp_path: Path) -> None:
    text = run_ranks("graph", 2, tmp_path, True, "--yielding")
    print(text)
    assert "replays of 2 calls bit-equal" in text


def test_absent_rank_is_named(tmp_path: Path) -> None:
    text = run_ranks("timeout", 3, tmp_path, False, "--yielding")
    assert text.count("waiting for rank 2") == 2, text


@pytest.mark.parametrize("world", [1, 2, 4])
def test_fused_collectives(tmp_path: Path, world: int) -> None:
    text = run_ranks("fused", world, tmp_path, True, "--yielding")
    print(text)
    assert text.count(f"fused: {world} ranks, worst errors") == 2


def test_sub_groups_of_the_fused_gpu_kernels(tmp_path: Path) -> None:
    """The SPIR-V that GPUs get, whose sums cross sub-groups of 16; the yielding build has sub-groups of one."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two spinning ranks need two cores")
    text = run_ranks("sub_groups", 2, tmp_path, True, "--patience", "100")
    print(text)
    assert "sub-groups: worst error" in text


@pytest.mark.parametrize("op", ["add_all_reduce", "qk_rms_norm", "add_all_reduce_rms_norm"])
def test_absent_rank_is_named_by_fused_collectives(tmp_path: Path, op: str) -> None:
    text = run_ranks("late", 2, tmp_path, False, "--yielding", "--op", op)
    assert f"rank 1: {op} of " in text, text
