"""The adapter's environment variables. vLLM hands the environment on to every process it starts."""

from __future__ import annotations

import os

#: What LAMPORT_VLLM_FUSE may list.
FUSIONS = ("qk_norm", "add_norm", "shared")


def enabled() -> bool:
    """LAMPORT_VLLM=1."""
    return os.environ.get("LAMPORT_VLLM") == "1"


def report() -> bool:
    """LAMPORT_VLLM_REPORT=1: each rank prints its counters when it ends."""
    return os.environ.get("LAMPORT_VLLM_REPORT") == "1"


def fusions() -> frozenset[str]:
    """LAMPORT_VLLM_FUSE: a comma-separated part of FUSIONS, or "none"; all by default.

    Raises:
        ValueError: a name that is not in FUSIONS.
    """
    text = os.environ.get("LAMPORT_VLLM_FUSE")
    if text is None:
        return frozenset(FUSIONS)
    names = frozenset(name.strip() for name in text.split(",")) - {"", "none"}
    if unknown := names - set(FUSIONS):
        raise ValueError(
            f"LAMPORT_VLLM_FUSE lists {', '.join(sorted(unknown))}; it takes {', '.join(FUSIONS)}, or none"
        )
    return names
