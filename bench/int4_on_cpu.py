"""Lets vLLM's CPU platform run what it refuses: INT4 experts (dequantised at load) and MiniMax-M2's sigmoid router."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import FusedMoeWeightScaleSupported, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.quantization.inc.schemes.inc_wna16_scheme import INCWna16Scheme
from vllm.model_executor.utils import set_weight_attrs

from lamport_xpu.bench.tiny_models import GROUP, dequantise

_PACKED = 8
_NAMES = ("w13", "w2")


class Int4Experts(UnquantizedFusedMoEMethod):
    """Loads GPTQ-packed experts as vLLM's INT4 methods do, and computes with the unquantised one."""

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        self._unquantised = (num_experts, hidden_size, intermediate_size_per_partition, params_dtype)
        attrs = {
            **extra_weight_attrs,
            "quant_method": FusedMoeWeightScaleSupported.GROUP.value,
            "is_transposed": True,
        }
        sizes = {
            "w13": (hidden_size, 2 * intermediate_size_per_partition),
            "w2": (intermediate_size_per_partition, hidden_size),
        }
        for name, (width, out) in sizes.items():
            for part, size, dtype in (
                ("qweight", (width // _PACKED, out), torch.int32),
                ("scales", (width // GROUP, out), params_dtype),
                ("qzeros", (width // GROUP, out // _PACKED), torch.int32),
            ):
                empty = torch.empty(num_experts, *size, dtype=dtype)
                parameter = torch.nn.Parameter(empty, requires_grad=False)
                layer.register_parameter(f"{name}_{part}", parameter)
                set_weight_attrs(parameter, attrs)

    def process_weights_after_loading(self, layer: Any) -> None:
        weights = {
            name: dequantise(getattr(layer, f"{name}_qweight").data, getattr(layer, f"{name}_scales").data)
            for name in _NAMES
        }
        for name in _NAMES:
            for part in ("qweight", "scales", "qzeros"):
                delattr(layer, f"{name}_{part}")
        super().create_weights(layer, *self._unquantised, weight_loader=None)
        layer.w13_weight.data.copy_(weights["w13"])
        layer.w2_weight.data.copy_(weights["w2"])
        super().process_weights_after_loading(layer)


def install() -> None:
    """Must run in every process of vLLM before it builds a model."""

    def get_moe_method(self: Any, config: Any, layer: Any, prefix: str, layer_config: Any) -> Int4Experts:
        return Int4Experts(layer.moe_config)

    INCWna16Scheme.get_moe_method = get_moe_method
    stock = CPURouter._compute_routing

    def _compute_routing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.scoring_func == "sigmoid":  # one group of all experts: grouped top-k knows sigmoid
            self.use_grouped_topk, self.num_expert_group, self.topk_group = True, 1, 1
        return stock(self, *args, **kwargs)

    CPURouter._compute_routing = _compute_routing
