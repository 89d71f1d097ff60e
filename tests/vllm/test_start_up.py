"""Which classes vLLM ends up with, and what it does when a rank cannot take part or dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm import scenario

pytest.importorskip("vllm", reason="not installed here; these tests run by: make test-vllm")

STOCK = "vllm.distributed.device_communicators.cpu_communicator.CpuCommunicator"
OURS = "lamport_xpu.integrations.vllm.communicator.LamportCpuCommunicator"
STEPS = [["state", "rpc", "test_state"], ["outputs", "generate"]]


def _run(folder: Path, minimax: Path, env: dict[str, str], steps: list[list[Any]] = STEPS, **options: Any) -> Any:
    return scenario.run(
        steps, folder, env=env, model=str(minimax), tensor_parallel_size=2, enforce_eager=True, **options
    )


def _finished(found: dict[str, Any]) -> dict[str, Any]:
    assert "results" in found, found["log"]
    return {**found["results"], "log": found["log"]}


@pytest.fixture(scope="module")
def stock(minimax: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _finished(_run(tmp_path_factory.mktemp("stock"), minimax, {"LAMPORT_VLLM": "0"}))


def test_off_means_stock_classes(stock: dict[str, Any]) -> None:
    for state in stock["state"]:
        assert state["class"] == STOCK
        assert state["platform"][0] == "vllm.platforms.cpu.CpuPlatform"
    assert "lamport" not in stock["log"]


def test_installed_package_is_found_by_a_new_interpreter(minimax: Path, tmp_path: Path, stock: dict[str, Any]) -> None:
    """By the platform plugin, in processes that vLLM starts as it always does."""
    found = _finished(_run(tmp_path, minimax, {"LAMPORT_VLLM": "1"}, fresh=True))
    for state in found["state"]:
        assert state["class"] == OURS
        assert state["platform"][0] == "lamport_xpu.integrations.vllm.cpu_platform.LamportCpuPlatform"
        assert state["on"]
        assert state["fusions"] == ["add_norm", "qk_norm", "shared"]
    tokens = [[token for token, _ in output] for output in found["outputs"]]
    assert tokens == [[token for token, _ in output] for output in stock["outputs"]]


def test_probe_failure_on_one_rank_leaves_all_with_stock(minimax: Path, tmp_path: Path, stock: dict[str, Any]) -> None:
    found = _finished(_run(tmp_path, minimax, {"LAMPORT_VLLM": "1", "TEST_BREAK_PROBE": "1"}))
    assert [state["on"] for state in found["state"]] == [False, False]
    assert found["outputs"] == stock["outputs"]
    assert "lamport-xpu: off for tp:0, all ranks keep vLLM's communicator" in found["log"]
    assert "rank 1" in found["log"]
    assert "wrong sum" in found["log"]


def test_expert_parallelism_is_declined(minimax: Path, tmp_path: Path) -> None:
    """Looks only: generation in this configuration crashes in vLLM's own CPU kernels."""
    found = _finished(_run(tmp_path, minimax, {"LAMPORT_VLLM": "1"}, STEPS[:1], enable_expert_parallel=True))
    assert [state["on"] for state in found["state"]] == [False, False]
    assert "expert parallelism (--enable-expert-parallel) is on" in found["log"]


def test_death_of_a_rank_ends_the_job(minimax: Path, tmp_path: Path) -> None:
    steps: list[list[Any]] = [["state", "rpc", "test_state"], ["killed", "kill_during_generate", 1, 1.0]]
    found = _run(tmp_path, minimax, {"LAMPORT_VLLM": "1"}, steps, seconds=90)
    assert found["code"] not in (0, None), found["log"]
    assert "results" not in found
    assert "died" in found["log"]
