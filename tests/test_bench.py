"""The all-reduce benchmark: parsing and statistics here, whole runs at world 2 through mpirun."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamport_xpu.bench import launch, payload, report
from lamport_xpu.bench.peers import PEERS, BackendError, find_peer
from lamport_xpu.bench.rows import Row, fastest_peer, merge, with_ours_once
from lamport_xpu.bench.runner import Plan
from lamport_xpu.bench.sweep import sweep
from lamport_xpu.bench.terminal import ProgressBar
from lamport_xpu.bench.timing import Statistics
from lamport_xpu.bench.tune import best_thresholds, describe
from lamport_xpu.bench.units import (
    BF16,
    DTYPES,
    FP16,
    FP32,
    DTypeError,
    SizeError,
    element_count,
    format_size,
    format_us,
    parse_dtypes,
    parse_size,
    parse_sizes,
)
from lamport_xpu.bench.variants import ONECCL_VARIANTS, Variant, clean_environment
from lamport_xpu.comm.policy import UNLIMITED, Thresholds

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "bench" / "allreduce_sizes.py"
QUICK = ("--sizes=8,6144", "--dtypes=fp32,fp16", "--rounds=3", "--seconds=2")
ROW_KEYS = {"backend", "variant", "dtype", "bytes", "world", "discipline",
            "median_us", "best_us", "p99_us", "rounds", "ok", "error"}  # fmt: skip

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user's environment, with mpirun's helpers and the misbehaving backends to be found."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(str(HERE))
    for name in [n for n in os.environ if n.startswith("CCL_")]:
        monkeypatch.delenv(name)
    return dict(os.environ)


@pytest.fixture
def mpirun(environment: dict[str, str]) -> Run:
    """Run the benchmark on some ranks; a hang fails the test."""

    def run(*arguments: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
        command = [
            "timeout",
            "-k",
            "5",
            "120",
            launch.mpirun(),
            "-n",
            str(ranks),
            sys.executable,
            str(SCRIPT),
        ]
        return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True)

    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"]


# --- whole runs


def test_run_reports_every_backend_and_cell(mpirun: Run, tmp_path: Path) -> None:
    result, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    done = mpirun(*QUICK, "--json", str(result), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    data = json.loads(result.read_text())
    assert {"cpu", "cores", "kernel", "date", "pinning", "versions"} <= data["machine"].keys()
    assert data["machine"]["pinning"].keys() == {"0", "1"}
    cells = {(r["backend"], r["dtype"], r["bytes"], r["discipline"]) for r in data["rows"]}
    assert len(cells) == len(data["rows"]) == 4 * 2 * 2 * 2
    for row in data["rows"]:
        assert row.keys() >= ROW_KEYS
        assert row["world"] == 2
        if row["ok"]:
            assert 0 < row["best_us"] <= row["median_us"] <= row["p99_us"]
            assert row["rounds"] >= 1
            assert row["error"] is None
        else:
            assert row["error"]
    by_backend = {r["backend"]: r["ok"] for r in data["rows"] if r["dtype"] == "fp32"}
    assert by_backend["lamport"], data["rows"]
    assert by_backend["mpi"]
    assert by_backend["gloo"]
    refused = [r for r in data["rows"] if r["backend"] == "mpi" and r["dtype"] == "fp16"]
    assert all(not r["ok"] and "no 16-bit" in r["error"] for r in refused)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_table_fits_a_terminal_and_only_rank_zero_speaks(mpirun: Run) -> None:
    done = mpirun(*QUICK, "--discipline=stream")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 120
    assert sum("#wrong" in line for line in lines) == 1
    assert "rank 0 on core" in done.stdout
    assert done.stderr == ""


def test_three_ranks_share_the_cores(mpirun: Run, tmp_path: Path) -> None:
    result = tmp_path / "rows.json"
    options = ("--sizes=12", "--dtypes=bf16", "--rounds=2", "--seconds=5", "--backends=lamport,gloo")
    done = mpirun(*options, "--json", str(result), ranks=3)
    assert done.returncode == 0, done.stderr
    assert all(row["ok"] and row["wrong"] == 0 for row in rows_of(result))


def test_wrong_results_are_reported_and_not_timed(mpirun: Run, tmp_path: Path) -> None:
    result = tmp_path / "rows.json"
    done = mpirun(*QUICK, "--backends=mpi,bench_peers:Wrong", "--dtypes=fp32", "--json", str(result))
    rows = {row["backend"]: row for row in rows_of(result)}
    assert rows["mpi"]["ok"]
    assert not rows["wrong"]["ok"]
    assert rows["wrong"]["wrong"] == 2  # one element on each rank
    assert rows["wrong"]["median_us"] is None
    assert "WRONG wrong" in done.stdout


def test_results_going_wrong_while_timing_are_reported(mpirun: Run, tmp_path: Path) -> None:
    result = tmp_path / "rows.json"
    mpirun(*QUICK, "--backends=mpi,bench_peers:WrongLater", "--dtypes=fp32", "--json", str(result))
    rows = [row for row in rows_of(result) if row["backend"] == "wrong_later"]
    assert all(not row["ok"] and row["wrong"] > 0 and "while timing" in row["error"] for row in rows)


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("CannotOpen", "rank 1: OSError: no such device"),
        ("LosesItsLink", "rank 0: TimeoutError: no answer from rank 1"),
    ],
)
def test_a_failing_backend_does_not_take_the_others_along(
    mpirun: Run, tmp_path: Path, backend: str, reason: str
) -> None:
    result = tmp_path / "rows.json"
    options = (f"--backends=bench_peers:{backend},mpi", "--dtypes=fp32", "--rounds=30")
    done = mpirun(*QUICK, *options, "--json", str(result))
    assert done.returncode == 0, done.stderr
    mpi = [row for row in rows_of(result) if row["backend"] == "mpi"]
    others = [row for row in rows_of(result) if row["backend"] != "mpi"]
    assert all(row["ok"] for row in mpi)
    assert {row["error"] for row in others} == {reason}


def test_sweep_turns_hangs_into_rows(environment: dict[str, str]) -> None:
    del environment  # in effect through os.environ
    plan = Plan(sizes=(8, 6144), dtypes=(FP32,), disciplines=("stream",), rounds=2, seconds=1)
    variants = [Variant("first", {"CCL_ALLREDUCE": "ring"}), Variant("second")]
    with ProgressBar(enabled=False) as progress:
        hung, facts = sweep(variants[:1], plan, 2, ["mpi", "bench_peers:Hangs"], 1, 15.0, progress)
        fine, _ = sweep(variants, plan, 2, ["mpi", "mpi_persistent"], 1, 60.0, progress)
    assert facts is None  # it hangs in its first cell
    assert len(hung) == 2 * 2
    assert {row.error for row in hung} == {"hung: ended after 15 s"}
    assert [row.variant for row in fine if row.bytes == 8] == ["first", "first", "second", "second"]
    assert all(row.ok and row.rounds >= 2 for row in fine)


def test_a_hang_in_a_plain_run_ends_with_a_traceback(mpirun: Run) -> None:
    done = mpirun("--sizes=8", "--dtypes=fp32", "--backends=mpi,bench_peers:Hangs", "--stall=3")
    assert done.returncode not in (0, 124)
    assert "rank 0: no progress for 3 s in hangs (fp32 8 B stream)" in done.stderr
    assert "bench_peers.py" in done.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--sizes=6", "size 6: not a multiple of the 4 bytes of one fp32 element"),
        ("--dtypes=fp64", "dtype 'fp64': expected one or more of fp32, fp16, bf16"),
        ("--device=tpu", "invalid choice: 'tpu'"),
    ],
)
def test_bad_command_lines_are_explained_once(mpirun: Run, option: str, message: str) -> None:
    done = mpirun(option)
    assert done.returncode != 0
    assert done.stderr.count(message) == 1
    assert "Traceback" not in done.stderr


def test_one_process_alone_gets_a_hint(environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "mpirun -n 2" in done.stderr


def test_tune_stores_thresholds(mpirun: Run, environment: dict[str, str], tmp_path: Path) -> None:
    environment["XDG_CACHE_HOME"] = str(tmp_path)
    done = mpirun("--tune", "--sizes=8,1KiB", "--dtypes=fp32,bf16", "--rounds=2", "--seconds=2")
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "lamport-xpu" / "thresholds.json").read_text())
    assert stored.keys() == {"cpu/2/float32", "cpu/2/bfloat16"}


# --- parts


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("6144B", 6144), ("1MiB", 1 << 20), ("1m", 1 << 20), ("64 KiB", 1 << 16), ("1KB", 1000),
     ("1.5KiB", 1536), ("2GiB", 1 << 31)],
)  # fmt: skip
def test_sizes_with_units(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-8", "0", "1.3", "8 bits", "KiB", "1e3", "8,,16"])
def test_unreadable_sizes_raise(text: str) -> None:
    with pytest.raises(SizeError, match="size"):
        parse_sizes(text)


def test_lists_keep_order_and_drop_repeats() -> None:
    assert parse_sizes("1MiB,8,8B") == (1 << 20, 8)
    assert parse_dtypes("bf16, fp32,bf16") == (BF16, FP32)
    with pytest.raises(DTypeError, match="int8"):
        parse_dtypes("fp32,int8")


def test_sizes_must_hold_whole_elements() -> None:
    assert element_count(6, FP16) == 3
    with pytest.raises(SizeError, match="not a multiple of the 4 bytes"):
        Plan(sizes=(8, 6), dtypes=(FP16, FP32))


def test_numbers_read_well() -> None:
    assert [format_size(s) for s in (8, 6144, 6146, 1 << 20)] == ["8 B", "6 KiB", "6146 B", "1 MiB"]
    assert [format_us(t) for t in (0.3184, 4.2, 243.14, 9630.4)] == ["0.318", "4.20", "243.1", "9630"]


def test_statistics_are_microseconds() -> None:
    times = Statistics.of(np.arange(1, 102) * 1e-6)
    assert (times.median, times.best, times.p99) == pytest.approx((51, 1, 100))


def row(backend: str, median: float | None, **changes: Any) -> Row:
    facts = {"variant": "", "dtype": "fp32", "bytes": 8, "world": 2, "discipline": "stream"}
    times = {"median_us": median, "best_us": median, "p99_us": median, "ok": median is not None, "rounds": 1}
    return Row(backend, **(facts | times | changes))


def test_fastest_peer_ignores_ours_and_wrong_results() -> None:
    rows = [row("lamport", 1.0), row("mpi", 4.0), row("gloo", 2.0, ok=False), row("oneccl", None)]
    assert list(fastest_peer(rows).values()) == [4.0]


def test_merging_keeps_a_failure_visible() -> None:
    merged = merge([row("mpi", 4.0), row("mpi", 2.0, p99_us=9.0), row("mpi", None, error="hung")])
    assert (merged.median_us, merged.best_us, merged.p99_us, merged.rounds) == (3.0, 2.0, 9.0, 2)
    assert not merged.ok
    assert merged.error == "hung"


def test_a_sweep_shows_ours_once() -> None:
    rows = [row(who, time, variant=v) for v in ("a", "b") for who, time in (("lamport", 1.0), ("oneccl", 4.0))]
    assert [(r.backend, r.variant) for r in with_ours_once(rows)] == [("lamport", ""), ("oneccl", "a"), ("oneccl", "b")]
    assert with_ours_once(rows[:2]) == rows[:2]


def test_json_round_trip(tmp_path: Path) -> None:
    rows = [row("mpi", 4.0), row("oneccl", None, error="not here")]
    report.write_json(tmp_path / "rows.json", {"cpu": "x"}, rows)
    assert report.read_json(tmp_path / "rows.json") == ({"cpu": "x"}, rows)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("world_size", range(1, 9))
def test_steady_payload_sums_to_zero_in_any_order(dtype: Any, world_size: int) -> None:
    def inputs(turns: int) -> list[torch.Tensor]:
        result = []
        for rank in range(world_size):
            steady = payload.SteadyPayload(100, dtype, rank, world_size, "cpu")
            buffer = torch.empty(100, dtype=dtype.torch)
            for _ in range(turns):
                steady.fill(buffer)
            result.append(buffer)
        return result

    first, second = inputs(1), inputs(2)
    for order in (
        range(world_size),
        reversed(range(world_size)),
        np.random.default_rng(1).permutation(world_size),
    ):
        total = torch.zeros(100, dtype=dtype.torch)
        for rank in order:
            total += first[rank]
        assert payload.SteadyPayload.wrong(total) == 0
    if world_size > 1:  # a rank that gets a peer's previous data must not go unnoticed
        stale = sum(x.float() for x in [*second[:-1], first[-1]])
        assert payload.SteadyPayload.wrong(stale) == 100


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_checks_accept_rounding_and_catch_errors(dtype: Any) -> None:
    count, world_size = 3000, 4
    inputs = [torch.empty(count, dtype=dtype.torch) for _ in range(world_size)]
    for rank, x in enumerate(inputs):
        payload.fill_random(x, rank, dtype)
    rounded_every_time = inputs[3] + inputs[1] + inputs[0] + inputs[2]
    assert payload.wrong_within_rounding(rounded_every_time, world_size, dtype) == 0
    oracle = (inputs[0].float() + inputs[1].float() + inputs[2].float() + inputs[3].float()).to(dtype.torch)
    assert payload.wrong_bits(oracle, world_size, dtype) == 0
    for bad in (math.nan, math.inf, 30.0):
        damaged = oracle.clone()
        damaged[7] = bad
        assert payload.wrong_within_rounding(damaged, world_size, dtype) == 1
        assert payload.wrong_bits(damaged, world_size, dtype) == 1


def test_thresholds_follow_the_curves_and_not_the_noise() -> None:
    sizes = [1 << p for p in range(10, 16)]
    one_shot = [1.0, 2, 4, 8, 16, 32]
    two_shot = [2.0, 3, 3.9, 5, 7, 12]  # at 4 KiB faster by less than the margin
    library = [9.0, 9, 9, 9, 9, 9]
    assert best_thresholds(sizes, one_shot, two_shot, library) == Thresholds(4096, 16384)
    never = [math.inf] * 6
    assert best_thresholds(sizes, one_shot, never, never) == Thresholds(UNLIMITED, UNLIMITED)
    assert best_thresholds(sizes, [99.0] * 6, two_shot, never) == Thresholds(0, UNLIMITED)
    assert describe(Thresholds(4096, 16384)) == "one-shot up to 4 KiB, two-shot up to 16 KiB, then the library"


def test_backends_by_name() -> None:
    assert {find_peer(name) for name in PEERS} == set(PEERS.values())
    with pytest.raises(BackendError, match="no_such_module"):
        find_peer("no_such_module:Peer")


def test_variants_start_from_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({v.name for v in ONECCL_VARIANTS}) == len(ONECCL_VARIANTS)
    monkeypatch.setenv("CCL_ALLREDUCE", "ring")
    monkeypatch.setenv("CCL_KVS_IFACE", "lo")
    default = clean_environment(next(v for v in ONECCL_VARIANTS if v.name == "default"))
    assert "CCL_ALLREDUCE" not in default
    assert default["CCL_KVS_IFACE"] == "lo"


def test_pinning_goes_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    given: set[int] = set()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {4, 6, 7})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cores: given.update(cores))
    for name in launch._LOCAL_RANK:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MPI_LOCALRANKID", "4")
    assert launch.pin() == 6
    assert given == {6}
