"""What the fusions need of vLLM's compilation config."""

from __future__ import annotations

from typing import Any


def configure(vllm_config: Any, fusions: frozenset[str]) -> None:
    """Called in the process that builds the configuration, before it is hashed and sent to the workers."""
