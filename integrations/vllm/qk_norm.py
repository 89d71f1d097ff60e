"""MiniMax-M2's Q/K norm: vLLM's operator for it calls our collective where it would sum variances over the ranks.

vllm::minimax_qk_norm_fusion stays in the graph as it is. What is replaced is the function it falls to where there is
no kernel of its own, which is everywhere but CUDA.
"""

from __future__ import annotations

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.minimax_rms_norm import rms_norm_tp

_stock = rms_norm_tp._minimax_qk_norm_tp_fallback


def install() -> None:
    """Puts ours in place; harmless to repeat."""
    rms_norm_tp._minimax_qk_norm_tp_fallback = _qk_norm


def _qk_norm(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_size: int,
    kv_size: int,
    tp_rank: int,
    tp_world: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    communicator = get_tp_group().device_communicator
    if hasattr(communicator, "qk_rms_norm"):
        result: tuple[torch.Tensor, torch.Tensor] | None = communicator.qk_rms_norm(
            qkv, q_weight, k_weight, q_size, kv_size, eps
        )
        if result is not None:
            return result
    return _stock(qkv, q_weight, k_weight, q_size, kv_size, tp_rank, tp_world, eps)
