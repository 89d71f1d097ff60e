"""The graph pass on graphs made by hand: what it fuses, and what only looks alike."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

pytest.importorskip("vllm", reason="not installed here; these tests run by: make test-vllm")
import vllm.distributed.parallel_state  # noqa: F401 - registers vllm::all_reduce
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from vllm import ir

from lamport_xpu.integrations.vllm import fusion_pass, ops, settings  # noqa: F401

ALL = frozenset(settings.FUSIONS)
Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Any]


def all_reduce(x: torch.Tensor, group: str = "tp:0") -> torch.Tensor:
    return torch.ops.vllm.all_reduce(x, group)


def norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, *rest: Any) -> Any:
    return ir.ops.fused_add_rms_norm.torch_op(x, residual, weight, 1e-6, *rest)


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    communicator = SimpleNamespace(fusions=ALL)
    found = SimpleNamespace(unique_name="tp:0", device_communicator=communicator)
    monkeypatch.setattr(fusion_pass, "get_tp_group", lambda: found)
    monkeypatch.setattr(fusion_pass, "model_parallel_is_initialized", lambda: True)
    return found


def passed(program: Program, fusions: frozenset[str] = ALL) -> list[str]:
    """Names of the collectives left, in order, after the pass."""
    with FakeTensorMode():
        x = torch.empty(4, 64)
        traced = make_fx(program)(x, torch.empty(4, 64), torch.empty(4, 64), torch.empty(64))
    before = [node.meta["val"] for node in traced.graph.nodes if node.op == "output" and "val" in node.meta]
    fusion_pass.FusionPass(fusions, 64)(traced.graph)
    assert [node.meta["val"] for node in traced.graph.nodes if node.op == "output" and "val" in node.meta] == before
    return _collectives(traced.graph)


def _collectives(graph: fx.Graph) -> list[str]:
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    return [name.split(".")[1] for name in names if "all_reduce" in name]


def test_norm_after_all_reduce() -> None:
    assert passed(lambda x, y, r, w: norm(all_reduce(x), r, w)) == ["add_all_reduce_rms_norm"]


def test_reshape_that_changes_nothing_is_no_obstacle() -> None:
    assert passed(lambda x, y, r, w: norm(all_reduce(x).view(4, 64), r, w)) == ["add_all_reduce_rms_norm"]


def test_sum_before_all_reduce() -> None:
    assert passed(lambda x, y, r, w: all_reduce(x + y)) == ["add_all_reduce"]


def test_sum_and_norm_become_one() -> None:
    assert passed(lambda x, y, r, w: norm(all_reduce(x + y), r, w)) == ["add_all_reduce_rms_norm"]


def test_chain_keeps_its_order() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        first, residual = norm(all_reduce(x), r, w)
        return norm(all_reduce(first * y), residual, w)

    assert passed(program) == ["add_all_reduce_rms_norm"] * 2


@pytest.mark.parametrize(
    ("fusions", "left"),
    [
        (frozenset(), ["all_reduce"]),
        (frozenset({"qk_norm"}), ["all_reduce"]),
        (frozenset({"shared"}), ["add_all_reduce"]),
        (frozenset({"add_norm"}), ["add_all_reduce_rms_norm"]),
    ],
)
def test_each_fusion_by_itself(fusions: frozenset[str], left: list[str], group: SimpleNamespace) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return norm(all_reduce(x + y), r, w)

    assert passed(program, fusions) == left
    group.device_communicator.fusions = fusions  # what works here counts, as what is wished
    assert passed(program, ALL) == left


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y, r, w: norm(all_reduce(x, "ep:0"), r, w),
        lambda x, y, r, w: norm(all_reduce(x), r, None),
        lambda x, y, r, w: norm(all_reduce(x), r, w, 32),
        lambda x, y, r, w: norm(r, all_reduce(x), w),
        lambda x, y, r, w: (norm(total := all_reduce(x), r, w), total),
        lambda x, y, r, w: all_reduce(torch.add(x, y, alpha=2)),
        lambda x, y, r, w: all_reduce(x + y[:1]),
        lambda x, y, r, w: all_reduce(x + 1.0),
        lambda x, y, r, w: (all_reduce(total := x + y), total * 2),
        lambda x, y, r, w: all_reduce(x.half() + y),
    ],
    ids=[
        "other group",
        "no weight",
        "part of the row",
        "as residual",
        "sum used twice",
        "scaled",
        "broadcast",
        "number",
        "term used twice",
        "mixed dtypes",
    ],
)
def test_lookalikes_are_left_alone(program: Program) -> None:
    assert passed(program) == ["all_reduce"]


def test_cache_key_tells_fused_from_unfused(group: SimpleNamespace) -> None:
    fused = fusion_pass.FusionPass(ALL, 64).uuid()
    group.device_communicator.fusions = frozenset()
    assert fusion_pass.FusionPass(ALL, 64).uuid() != fused


def test_prefill_ranges_stay_unfused() -> None:
    decode = fusion_pass.FusionPass(ALL, 64)
    assert decode.is_applicable_for_range(SimpleNamespace(end=64))
    assert not decode.is_applicable_for_range(SimpleNamespace(end=65))
