"""MiniMax-M2 INT4 in real vLLM, all-reduces through us and unfused: the bits of a rank-order sum, and their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm import scenario

pytest.importorskip("vllm", reason="not installed here; these tests run by: make test-vllm")

OURS = "lamport_xpu.integrations.vllm.communicator.LamportCpuCommunicator"
LAYERS = {"eager": 4, "compiled": 2}
MODES = [(tp, mode) for mode in ("eager", "compiled") for tp in (2, 4)]


@pytest.fixture(scope="module", params=MODES, ids=[f"tp{tp}-{mode}" for tp, mode in MODES])
def engine(
    request: pytest.FixtureRequest, minimax: Path, shallow_minimax: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    tp, mode = request.param
    steps = [
        ["state", "rpc", "test_state"],
        ["warm-up", "generate"],  # compiles
        ["", "rpc", "test_counts"],
        ["adapter", "generate"],
        ["counts", "rpc", "test_counts"],
        *([name, *step] for name in ("fixed_rank_sum", "sum_rounded_often", "no_sum") for step in _swapped(name)),
        ["", "rpc", "test_swap_all_reduce", ""],
        ["", "rpc", "test_counts"],
        ["long", "generate", 2, [list(range(100, 400))]],
        ["long counts", "rpc", "test_counts"],
        ["last", "generate", 1],
    ]
    found = scenario.run(
        steps,
        tmp_path_factory.mktemp("engine"),
        env={"LAMPORT_VLLM": "1", "LAMPORT_VLLM_FUSE": "none", "LAMPORT_VLLM_REPORT": "1"},
        model=str(minimax if mode == "eager" else shallow_minimax),
        tensor_parallel_size=tp,
        enforce_eager=mode == "eager",
        max_num_batched_tokens=512,
    )
    assert "results" in found, found["log"]
    return {"tp": tp, "layers": LAYERS[mode], "log": found["log"], **found["results"]}


def _swapped(name: str) -> list[list[Any]]:
    return [["rpc", "test_swap_all_reduce", name], ["generate"]]


def test_adapter_is_on_for_every_rank(engine: dict[str, Any]) -> None:
    assert [state["class"] for state in engine["state"]] == [OURS] * engine["tp"]
    assert all(state["on"] for state in engine["state"])
    assert f"lamport-xpu: on for tp:0: {engine['tp']} ranks on cpu" in engine["log"]


def test_same_bits_as_a_rank_order_sum(engine: dict[str, Any]) -> None:
    assert engine["adapter"] == engine["fixed_rank_sum"]


def test_comparison_sees_a_wrong_sum(engine: dict[str, Any]) -> None:
    tokens = [[token for token, _ in output] for output in engine["adapter"]]
    assert tokens != [[token for token, _ in output] for output in engine["no_sum"]]


def test_comparison_sees_another_rounding(engine: dict[str, Any]) -> None:
    if engine["tp"] == 2:  # a + b rounds once in either order: the control must agree here, and differ at four ranks
        assert engine["adapter"] == engine["sum_rounded_often"]
    else:
        assert engine["adapter"] != engine["sum_rounded_often"]


def test_three_calls_a_layer_and_one(engine: dict[str, Any]) -> None:
    calls = (3 * engine["layers"] + 1) * scenario.TOKENS
    assert engine["counts"] == [{"all_reduce lamport": calls}] * engine["tp"]


def test_prefill_beyond_decode_size_stays_with_vllm(engine: dict[str, Any]) -> None:
    """300 tokens of prefill, then one decode step; the Q/K variances are small even then."""
    layers = engine["layers"]
    expected = {"all_reduce lamport": layers + 3 * layers + 1, "all_reduce larger than 32768 bytes": 2 * layers + 1}
    assert engine["long counts"] == [expected] * engine["tp"]


def test_report_at_exit(engine: dict[str, Any]) -> None:
    for rank in range(engine["tp"]):
        line = f"lamport-xpu rank {rank} of {engine['tp']}, tp:0: all_reduce: {3 * engine['layers'] + 1} here, 0 stock"
        assert line in engine["log"]
