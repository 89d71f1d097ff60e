"""bench/fused_ops.py: whole runs through mpirun, its arithmetic, and wrong results that must not be timed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lamport_xpu.bench import launch
from lamport_xpu.bench.fused_cases import CASES, MODELS, Case, Place, wrong
from lamport_xpu.bench.fused_report import FUSED, SEPARATE, FusedRow, savings
from lamport_xpu.bench.units import BF16, FP32
from tests.test_bench import environment  # noqa: F401 - a fixture

SCRIPT = Path(__file__).parent.parent / "bench" / "fused_ops.py"
QUICK = ("--tokens=1,3", "--rounds=3", "--seconds=8", "--stock=gloo,mpi")

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def mpirun(environment: dict[str, str]) -> Run:  # noqa: F811
    def run(*arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        command = ["timeout", "-k", "5", "150", launch.mpirun(), "-n", str(ranks), sys.executable, str(SCRIPT)]
        return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)

    return run


def test_every_case_and_implementation(mpirun: Run, tmp_path: Path) -> None:
    result, plot = tmp_path / "r.json", tmp_path / "r.png"
    done = mpirun(*QUICK, "--json", str(result), "--plot", str(plot))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(result.read_text())
    cells = {(r["op"], r["model"], r["tokens"]) for r in data["rows"]}
    assert cells == {(op, m, t) for op, case in CASES.items() for m in case.models for t in (1, 3)}
    for row in data["rows"]:
        if row["implementation"] == "mpi" and row["op"] != "qk_rms_norm":
            assert "16-bit" in row["error"]
        else:
            assert row["ok"], row
            assert 0 < row["best_us"] <= row["median_us"] <= row["p99_us"]
            assert row["wrong"] == (None if row["implementation"] == "all-reduce" else 0)
    assert {s["against"] for s in data["savings"]} == {"unfused", "gloo", "mpi"}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert max(len(line) for line in done.stdout.splitlines()) <= 120
    assert "saved" in done.stdout


def test_four_ranks_and_another_type(mpirun: Run, tmp_path: Path) -> None:
    result = tmp_path / "r.json"
    options = ("--tokens=1", "--rounds=2", "--seconds=2", "--stock=mpi", "--dtype=fp32", "--quiet")
    done = mpirun(*options, "--json", str(result), ranks=4)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""
    assert all(row["ok"] and row["world"] == 4 for row in json.loads(result.read_text())["rows"])


@pytest.mark.parametrize(
    ("option", "message"),
    [("--tokens=0", "tokens '0'"), ("--tokens=x", "whole numbers"), ("--ops=foo", "op 'foo': expected"),
     ("--models=foo", "model 'foo'"), ("--dtype=fp64", "dtype 'fp64'"), ("--dtype=fp16,bf16", "one type"),
     ("--stock=foo", "backend 'foo'")],
)  # fmt: skip
def test_bad_command_lines_are_explained_once(mpirun: Run, option: str, message: str) -> None:
    done = mpirun(option)
    assert done.returncode == 2
    assert done.stderr.count(message) == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", CASES)
def test_separate_steps_give_the_exact_result_and_wrong_ones_are_counted(name: str) -> None:
    """At world 1, where the all-reduce is the identity; then with a reduction that loses half (negative control)."""
    kind: type[Case] = CASES[name]
    for dtype in (FP32, BF16):
        place = Place(0, 1, 3, dtype, "cpu")
        case = kind(MODELS[kind.models[0]], place)
        assert wrong(case.separate(lambda x: x)(), case.exact(), place) == 0
        assert wrong(case.separate(lambda x: x / 2)(), case.exact(), place) > 0


def test_wrong_counts_elements() -> None:
    place = Place(0, 2, 1, BF16, "cpu")
    exact = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert wrong(torch.tensor([1.0, 2.0, 3.0]), [exact], place) == 0
    assert wrong([torch.tensor([1.0, 20.0, -3.0])], [exact], place) == 2


def test_savings_count_the_calls_of_a_forward_pass() -> None:
    def row(implementation: str, median: float) -> FusedRow:
        head = ("add_all_reduce_rms_norm", "inkling", implementation, "bf16", 1, 2, "stream")
        return FusedRow(*head, median, median, median, ok=True)

    (saving,) = savings([row(FUSED, 10.0), row(SEPARATE, 30.0), row("all-reduce", 5.0)])
    assert (saving.calls, saving.saved_us) == (124, 124 * 20.0)
    assert savings([row(SEPARATE, 30.0)]) == []
