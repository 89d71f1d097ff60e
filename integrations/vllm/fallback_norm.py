"""vLLM's own fused_add_rms_norm, for calls that were fused into our collective and turn out not to fit it."""

from __future__ import annotations

import torch
from vllm import ir


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed, new residual), [T, H] each, by the fastest kernel vLLM has here; may overwrite `x`, not `residual`."""
    operation = ir.ops.fused_add_rms_norm
    # Outside a compiled graph "native" is several passes over memory: the last resort.
    for name, kernel in operation.impls.items():
        if name != "native" and kernel.supported and kernel.supports_args(x, residual, weight, eps):
            return kernel.func_impl_fn(x, residual, weight, eps)
    return operation.impls["native"].impl_fn(x, residual, weight, eps)
