"""torch.ops.lamport_xpu_vllm: what the graph passes put into a compiled graph.

Opaque to the compiler, like vllm::all_reduce beside them: whether a call fits our collective is decided when it is
made, where the shapes are known, and one that does not fit takes vLLM's way. A group is passed by name, as vLLM does.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed import parallel_state
from vllm.utils.torch_utils import direct_register_custom_op

_library = torch.library.Library("lamport_xpu_vllm", "FRAGMENT")  # type: ignore[no-untyped-call]


def _communicator(group_name: str) -> Any:
    group = parallel_state._groups[group_name]()
    if group is None:
        raise ValueError(f"group {group_name} was destroyed")
    return group.device_communicator


def _add_all_reduce(routed: torch.Tensor, shared: torch.Tensor, group_name: str) -> torch.Tensor:
    return _communicator(group_name).add_all_reduce(routed, shared)


def _add_all_reduce_fake(routed: torch.Tensor, shared: torch.Tensor, group_name: str) -> torch.Tensor:
    return torch.empty_like(routed)


def _add_all_reduce_rms_norm(
    routed: torch.Tensor,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _communicator(group_name).add_all_reduce_rms_norm(routed, shared, residual, weight, eps)


def _add_all_reduce_rms_norm_fake(
    routed: torch.Tensor,
    shared: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_name: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(routed), torch.empty_like(routed)


direct_register_custom_op("add_all_reduce", _add_all_reduce, fake_impl=_add_all_reduce_fake, target_lib=_library)
direct_register_custom_op(
    "add_all_reduce_rms_norm",
    _add_all_reduce_rms_norm,
    fake_impl=_add_all_reduce_rms_norm_fake,
    target_lib=_library,
)
