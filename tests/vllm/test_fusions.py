"""The fused collectives inside real vLLM: how often they are used, and that the model computes the same with them.

The reference runs in the same engine, with the same graphs: the fusions switched off, their operators take vLLM's way,
and the sums are those of the stock group. A fused norm rounds once where vLLM rounds twice, so outputs are close and
not equal: close enough that most prompts agree on the next token, while a model without sums agrees on almost none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm import scenario

pytest.importorskip("vllm", reason="not installed here; these tests run by: make test-vllm")

PROMPTS = [[number * 37 % 500, number * 11 % 500, number] for number in range(16)]
COMPILED = [("minimax", 2), ("minimax", 4), ("shared", 2)]


def _steps() -> list[list[Any]]:
    one_token = ["generate", 1, PROMPTS]
    return [
        ["state", "rpc", "test_state"],
        ["warm-up", "generate", 1],
        ["", "rpc", "test_counts"],
        ["fused", *one_token],
        ["counts", "rpc", "test_counts"],
        ["", "rpc", "test_set_fusions", []],
        ["unfused", *one_token],
        ["unfused counts", "rpc", "test_counts"],
        ["", "rpc", "test_swap_all_reduce", "fixed_rank_sum"],
        ["reference", *one_token],
        ["", "rpc", "test_swap_all_reduce", "no_sum"],
        ["wrong", *one_token],
        ["", "rpc", "test_swap_all_reduce", ""],
        ["", "rpc", "test_set_fusions", ["add_norm", "qk_norm", "shared"]],
        ["", "rpc", "test_counts"],
        ["long", "generate", 1, [list(range(100, 400))]],
        ["long counts", "rpc", "test_counts"],
    ]


def _run(folder: Path, model: Path, tp: int, **options: Any) -> dict[str, Any]:
    found = scenario.run(
        _steps(),
        folder,
        env={"LAMPORT_VLLM": "1"},
        model=str(model),
        tensor_parallel_size=tp,
        max_num_batched_tokens=512,
        **options,
    )
    assert "results" in found, found["log"]
    return {"tp": tp, **found["results"]}


@pytest.fixture(scope="module", params=COMPILED, ids=[f"{model}-tp{tp}" for model, tp in COMPILED])
def engine(
    request: pytest.FixtureRequest,
    shallow_minimax: Path,
    shared_expert_moe: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    model, tp = request.param
    checkpoint = {"minimax": shallow_minimax, "shared": shared_expert_moe}[model]
    dtype = {"minimax": "float16", "shared": "float32"}[model]
    return {"model": model, **_run(tmp_path_factory.mktemp("engine"), checkpoint, tp, dtype=dtype)}


def _expected_counts(model: str, suffix: str) -> dict[str, int]:
    """One forward. Without fusions every operator's call turns into one of all_reduce."""
    if model == "minimax":
        layers = 2
        fused = {"qk_rms_norm": layers, "add_all_reduce_rms_norm": 2 * layers}
        total = 3 * layers + 1
    else:
        layers = 3
        fused = {"add_all_reduce_rms_norm": 2 * layers}
        total = 2 * layers + 1
    counts = {f"{name} {suffix}": count for name, count in fused.items()}
    return {**counts, "all_reduce lamport": 1 if suffix == "lamport" else total}


def test_one_all_reduce_is_left(engine: dict[str, Any]) -> None:
    """That of the embedding, which has no norm with a residual after it."""
    assert engine["counts"] == [_expected_counts(engine["model"], "lamport")] * engine["tp"]


def test_switched_off_operators_take_vllms_way(engine: dict[str, Any]) -> None:
    assert engine["unfused counts"] == [_expected_counts(engine["model"], "switched off")] * engine["tp"]
    assert engine["unfused"] == engine["reference"]


def test_fused_agrees_with_reference(engine: dict[str, Any]) -> None:
    same, distance = _agreement(engine["fused"], engine["reference"])
    if engine["model"] == "shared":  # float32: rounding is too small to change a token
        assert same == len(PROMPTS)
        assert distance < 1e-3
    else:
        assert same >= len(PROMPTS) - 2
        assert distance < 0.1


def test_comparison_sees_a_wrong_sum(engine: dict[str, Any]) -> None:
    same, distance = _agreement(engine["wrong"], engine["reference"])
    assert same < len(PROMPTS) // 2 or distance > 0.5


def test_prefill_takes_vllms_way(engine: dict[str, Any]) -> None:
    """300 tokens: a prefill as large as here has a graph without our operators; what is small anyway stays with us."""
    if engine["model"] == "minimax":
        small, layers = {"qk_rms_norm lamport": 2}, 2
    else:
        small, layers = {}, 3
    size = 64 * 256 * (2 if engine["model"] == "minimax" else 4)
    expected = {**small, f"all_reduce larger than {size} bytes": 2 * layers + 1}
    assert engine["long counts"] == [expected] * engine["tp"]


def _agreement(left: list[Any], right: list[Any]) -> tuple[int, float]:
    """How many prompts agree on the next token, and the largest difference of its log probability among them."""
    pairs = [(a[0], b[0]) for a, b in zip(left, right, strict=True) if a[0][0] == b[0][0]]
    return len(pairs), max((abs(a[1] - b[1]) for a, b in pairs), default=float("inf"))


def test_qk_norm_needs_no_compiler(minimax: Path, tmp_path: Path) -> None:
    """Eager, at four ranks, where two ranks share a key head."""
    engine = _run(tmp_path, minimax, 4, enforce_eager=True)
    assert engine["counts"] == [{"qk_rms_norm lamport": 4, "all_reduce lamport": 9}] * 4
    assert engine["unfused counts"] == [{"qk_rms_norm switched off": 4, "all_reduce lamport": 13}] * 4
    assert engine["long counts"] == [{"qk_rms_norm lamport": 4, "all_reduce larger than 32768 bytes": 9}] * 4
    assert engine["unfused"] == engine["reference"]
    same, distance = _agreement(engine["fused"], engine["reference"])
    assert same >= len(PROMPTS) - 2
    assert distance < 0.1
