"""Writes random checkpoints: MiniMax-M2 as AutoRound quantises it (INT4, GPTQ packing), and a shared-expert MoE."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

GROUP = 32


@dataclass(frozen=True)
class Shape:
    """Sizes of a MiniMax-M2; the defaults split over up to four ranks, with key heads replicated at four."""

    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head: int = 32
    rotary: int = 16
    experts: int = 8
    top_k: int = 2
    intermediate: int = 256
    vocabulary: int = 512


#: Widths and head counts of MiniMax-M2, with four of its layers and few, narrow experts.
MINIMAX_WIDTH = Shape(hidden=3072, heads=48, kv_heads=8, head=128, rotary=64, intermediate=512, vocabulary=2048)


def write_minimax_m2(folder: Path, shape: Shape = Shape(), seed: int = 1) -> Path:
    """A complete checkpoint in `folder`; returns it."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) / size[-1] ** 0.5

    def near_one(size: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(size, generator=generator)).to(torch.float16)

    q, kv = shape.heads * shape.head, shape.kv_heads * shape.head
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        linears = {
            "self_attn.q_proj": (q, shape.hidden),
            "self_attn.k_proj": (kv, shape.hidden),
            "self_attn.v_proj": (kv, shape.hidden),
            "self_attn.o_proj": (shape.hidden, q),
        }
        for expert in range(shape.experts):
            name = f"block_sparse_moe.experts.{expert}"
            linears[f"{name}.w1"] = linears[f"{name}.w3"] = (shape.intermediate, shape.hidden)
            linears[f"{name}.w2"] = (shape.hidden, shape.intermediate)
        for name, size in linears.items():
            tensors |= {f"{prefix}.{name}.{part}": value for part, value in quantise(2 * normal(*size)).items()}
        tensors[f"{prefix}.self_attn.q_norm.weight"] = near_one(q)
        tensors[f"{prefix}.self_attn.k_norm.weight"] = near_one(kv)
        tensors[f"{prefix}.input_layernorm.weight"] = near_one(shape.hidden)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = near_one(shape.hidden)
        tensors[f"{prefix}.block_sparse_moe.gate.weight"] = 4 * normal(shape.experts, shape.hidden)
        tensors[f"{prefix}.block_sparse_moe.e_score_correction_bias"] = 0.1 * torch.randn(
            shape.experts, generator=generator
        )
    tensors["model.embed_tokens.weight"] = torch.randn(shape.vocabulary, shape.hidden, generator=generator).half()
    tensors["model.norm.weight"] = near_one(shape.hidden)
    tensors["lm_head.weight"] = (4 * normal(shape.vocabulary, shape.hidden)).half()

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    _write_config(folder, _minimax_config(shape))
    return folder


def write_shared_expert_moe(folder: Path, seed: int = 2) -> Path:
    """A small Qwen2-MoE in float32, whose layers have a shared expert."""
    hidden, layers, heads, kv_heads, head, inner, experts, vocabulary = 256, 3, 8, 4, 32, 128, 4, 512
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return 2 * torch.randn(*size, generator=generator) / size[-1] ** 0.5

    def near_one(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=generator)

    tensors = {
        "model.embed_tokens.weight": torch.randn(vocabulary, hidden, generator=generator),
        "model.norm.weight": near_one(hidden),
        "lm_head.weight": 2 * normal(vocabulary, hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for name, out in (("q", heads * head), ("k", kv_heads * head), ("v", kv_heads * head)):
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = normal(out, hidden)
            tensors[f"{prefix}.self_attn.{name}_proj.bias"] = 0.1 * torch.randn(out, generator=generator)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = normal(hidden, heads * head)
        tensors[f"{prefix}.input_layernorm.weight"] = near_one(hidden)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = near_one(hidden)
        tensors[f"{prefix}.mlp.gate.weight"] = normal(experts, hidden)
        tensors[f"{prefix}.mlp.shared_expert_gate.weight"] = normal(1, hidden)
        for expert in ("shared_expert", *(f"experts.{number}" for number in range(experts))):
            tensors[f"{prefix}.mlp.{expert}.gate_proj.weight"] = normal(inner, hidden)
            tensors[f"{prefix}.mlp.{expert}.up_proj.weight"] = normal(inner, hidden)
            tensors[f"{prefix}.mlp.{expert}.down_proj.weight"] = normal(hidden, inner)

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": hidden,
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    _write_config(folder, config)
    return folder


def quantise(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """`weight` [out, in] as symmetric INT4, groups along `in`: qweight [in/8, out], qzeros, scales [in/GROUP, out]."""
    out, width = weight.shape
    groups = weight.view(out, width // GROUP, GROUP)
    scales = (groups.abs().amax(-1) / 7).bfloat16().half()
    q = (groups / scales.float()[..., None]).round().add(8).clamp(0, 15).to(torch.int64).view(out, width)
    shifts = torch.arange(0, 32, 4)
    packed = (q.view(out, width // 8, 8) << shifts).sum(-1)
    as_int32 = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    return {
        "qweight": as_int32.t().contiguous(),
        "qzeros": torch.full((width // GROUP, out // 8), 0x77777777, dtype=torch.int32),
        "scales": scales.t().contiguous(),
    }


def dequantise(qweight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights [..., out, in] in scales' dtype, from qweight [..., in/8, out] and scales [..., in/GROUP, out]."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    q = (qweight.unsqueeze(-2) >> shifts[:, None]) & 15
    q = q.flatten(-3, -2)
    values = (q - 8).to(scales.dtype) * scales.repeat_interleave(GROUP, -2)
    return values.transpose(-1, -2).contiguous()


def _minimax_config(shape: Shape) -> dict[str, Any]:
    gates = {f"model.layers.{layer}.block_sparse_moe.gate": {"bits": 16} for layer in range(shape.layers)}
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "rotary_dim": shape.rotary,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "intermediate_size": shape.intermediate,
        "vocab_size": shape.vocabulary,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "quantization_config": {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "bits": 4,
            "group_size": GROUP,
            "sym": True,
            "data_type": "int",
            "block_name_to_quantize": "model.layers",
            "extra_config": gates,
        },
    }


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2))
