"""Graph pass: an all-reduce and what surrounds it become one collective.

    all_reduce(shared + routed)              ->  add_all_reduce                              ("shared")
    fused_add_rms_norm(all_reduce(x), r, w)  ->  add_all_reduce_rms_norm(x, None, r, w)      ("add_norm")
    both                                     ->  add_all_reduce_rms_norm(routed, shared, r, w)

It runs on the functional graph, before vLLM lowers its fused_add_rms_norm, and moves an all-reduce to the place of the
norm that uses it. All ranks compile the same program, so the order of collectives stays the same on all.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
from torch import fx
from vllm import ir
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.distributed.parallel_state import get_tp_group, model_parallel_is_initialized

logger = logging.getLogger("vllm.lamport_xpu")

_aten = torch.ops.aten


class FusionPass(InductorPass):
    """Fuses what is both in `fusions` and works on the tensor-parallel group's communicator.

    Args:
        fusions: names in settings.FUSIONS.
        max_tokens: ranges of shapes beyond it are compiled unfused; other graphs hold all shapes, and the operators
            decide at each call.
    """

    def __init__(self, fusions: frozenset[str], max_tokens: int) -> None:
        self.fusions = fusions
        self.max_tokens = max_tokens

    def __call__(self, graph: fx.Graph) -> None:
        fusions = self._active()
        found = [node for node in graph.nodes if _is_tensor_parallel_all_reduce(node)]
        counts = {"add_norm": 0, "shared": 0}
        for node in found if fusions else ():
            _fuse(graph, node, fusions, counts)
        graph.lint()
        logger.debug("lamport-xpu: of %d all-reduces in a graph, fused %s", len(found), counts)

    def uuid(self) -> str:
        source = InductorPass.hash_source(sys.modules[__name__].__spec__.loader.get_source(__name__))  # type: ignore
        return f"{source}-{','.join(sorted(self._active()))}"

    def is_applicable_for_range(self, compile_range: Any) -> bool:
        return bool(compile_range.end <= self.max_tokens)

    def _active(self) -> frozenset[str]:
        """Empty before the groups exist, which is when the configuration is hashed."""
        if not model_parallel_is_initialized():
            return frozenset()
        return self.fusions & getattr(get_tp_group().device_communicator, "fusions", frozenset())


def _is_tensor_parallel_all_reduce(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target is not torch.ops.vllm.all_reduce.default:
        return False
    (group_name,) = _arguments(node, "group_name")
    return group_name == get_tp_group().unique_name


def _fuse(graph: fx.Graph, node: fx.Node, fusions: frozenset[str], counts: dict[str, int]) -> None:
    routed, group_name = _arguments(node, "tensor", "group_name")
    shared = None
    if "shared" in fusions and (parts := _sum_of_two(routed)):
        shared, routed = parts
    norm = _norm_after(node) if "add_norm" in fusions else None
    arguments: tuple[Any, ...]
    if norm is not None:
        _, residual, weight, eps = _arguments(norm, "x", "x_residual", "weight", "epsilon")
        target = torch.ops.lamport_xpu_vllm.add_all_reduce_rms_norm.default
        replaced, arguments = norm, (routed, shared, residual, weight, eps, group_name)
        counts["add_norm"] += 1
    elif shared is not None:
        target = torch.ops.lamport_xpu_vllm.add_all_reduce.default
        replaced, arguments = node, (routed, shared, group_name)
    else:
        return
    counts["shared"] += shared is not None
    with graph.inserting_before(replaced):
        fused = graph.call_function(target, arguments)
    fused.meta["val"] = replaced.meta["val"]  # the rest of meta describes the arguments of the operator replaced
    replaced.replace_all_uses_with(fused)
    graph.eliminate_dead_code()


def _arguments(node: fx.Node, *names: str) -> list[Any]:
    """A call's arguments by name, however they were passed; None for one that was left out."""
    given = dict(zip((argument.name for argument in node.target._schema.arguments), node.args, strict=False))  # type: ignore[union-attr]
    given.update(node.kwargs)
    return [given.get(name) for name in names]


def _sum_of_two(x: Any) -> tuple[fx.Node, fx.Node] | None:
    """The terms, if `x` is a plain sum of two tensors of its own shape and dtype that nobody else uses."""
    if not (isinstance(x, fx.Node) and x.target is _aten.add.Tensor and not x.kwargs and len(x.users) == 1):
        return None
    left, right = x.args
    for term in (left, right):
        if not (isinstance(term, fx.Node) and _same(term.meta["val"], x.meta["val"])):
            return None
    return left, right  # type: ignore[return-value]


def _norm_after(node: fx.Node) -> fx.Node | None:
    """The fused_add_rms_norm that is the only user of `node`, seen through reshapes that change nothing."""
    value = node
    while len(value.users) == 1:
        (user,) = value.users
        if user.target is ir.ops.fused_add_rms_norm.torch_op:
            x, weight, variance_size = _arguments(user, "x", "weight", "variance_size")
            return user if x is value and weight is not None and variance_size is None else None
        if user.target not in (_aten.view.default, _aten.reshape.default) or not _same(
            user.meta["val"], node.meta["val"]
        ):
            return None
        value = user
    return None


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and tuple(left.shape) == tuple(right.shape)
