"""Configurations of vLLM that keep its own communicator."""

from __future__ import annotations

import os
from typing import Any


def unsupported(vllm_config: Any) -> str | None:
    """Why the adapter stays off under this configuration, or None if it can work."""
    parallel = vllm_config.parallel_config
    for value, what in (
        (parallel.pipeline_parallel_size, "pipeline parallelism (--pipeline-parallel-size)"),
        (parallel.data_parallel_size, "data parallelism (--data-parallel-size)"),
        (parallel.nnodes, "several nodes (--nnodes)"),
    ):
        if value > 1:
            return f"{what} is {value} and must be 1"
    if parallel.enable_expert_parallel:
        return "expert parallelism (--enable-expert-parallel) is on"
    if parallel.use_ubatching:
        return "dual-batch overlap (--enable-dbo) is on: two threads would share a communicator"
    codec = os.environ.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "NONE")
    if codec != "NONE":
        return f"a quantised all-reduce is asked for (VLLM_ROCM_QUICK_REDUCE_QUANTIZATION={codec}); ours is exact"
    if os.environ.get("VLLM_BATCH_INVARIANT") == "1":
        return (
            "VLLM_BATCH_INVARIANT=1: small and large batches would be summed by different libraries, whose rounding "
            "differs"
        )
    return None


def decode_tokens(vllm_config: Any) -> int:
    """Most tokens in one decode step, or in one captured graph, where the stock collectives cannot be."""
    tokens = vllm_config.scheduler_config.max_num_seqs
    if vllm_config.speculative_config is not None:
        tokens *= 1 + vllm_config.num_speculative_tokens
    captured = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    return int(max(tokens, captured))
