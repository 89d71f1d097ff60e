"""What the fusions need of vLLM's compilation config."""

from __future__ import annotations

import logging
from typing import Any

from lamport_xpu.integrations.vllm.unsupported import decode_tokens

logger = logging.getLogger("vllm.lamport_xpu")

_IN_GRAPHS = frozenset({"add_norm", "shared"})
_PASS = "post_grad_custom_post_pass"


def configure(vllm_config: Any, fusions: frozenset[str]) -> None:
    """Adds the graph pass. Called in the process that builds the configuration, before it is sent to the workers."""
    from vllm.config import CompilationMode

    wanted = fusions & _IN_GRAPHS
    compilation = vllm_config.compilation_config
    if not wanted or compilation.mode in (None, CompilationMode.NONE):
        return
    if _PASS in compilation.inductor_compile_config:
        logger.warning("lamport-xpu: fusions %s are off: %s is in use", ", ".join(sorted(wanted)), _PASS)
        return
    from lamport_xpu.integrations.vllm.fusion_pass import FusionPass

    tokens = decode_tokens(vllm_config)
    compilation.inductor_compile_config[_PASS] = FusionPass(wanted, tokens)
    # A graph of its own for decode; prefill keeps the unfused one.
    compilation.compile_ranges_endpoints = [*(compilation.compile_ranges_endpoints or []), tokens]
    if vllm_config.device_config.device_type == "cpu":
        # Otherwise the CPU compiles in a mode without passes.
        compilation.mode = CompilationMode.VLLM_COMPILE
        compilation.ir_enable_torch_wrap = True
        compilation.compile_sizes = compilation.compile_sizes or []
