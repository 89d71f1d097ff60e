"""vLLM adapter: with LAMPORT_VLLM=1, tensor-parallel collectives of real vLLM go through lamport_xpu.

vLLM finds the two functions below by entry point (pyproject.toml) and calls them in every process it starts. Both do
nothing unless LAMPORT_VLLM=1. They import nothing heavy, since vLLM itself is only half imported at that time.

    platform_plugin   names the platform class to use: the stock XPU or CPU platform with our communicator.
    general_plugin    does the same to whatever platform is in use by then: for VLLM_TARGET_DEVICE=cpu, where vLLM asks
                      no platform plugin, and beside another platform plugin, of which vLLM allows only one.
"""

from __future__ import annotations

from lamport_xpu.integrations.vllm import settings


def platform_plugin() -> str | None:
    """Qualified name of the platform class, or None to leave the choice to vLLM."""
    if not settings.enabled():
        return None
    from lamport_xpu.integrations.vllm import choose

    return choose.platform_class()


def general_plugin() -> None:
    """Gives the current platform our communicator, unless it has it already. May be called repeatedly."""
    if not settings.enabled():
        return
    from lamport_xpu.integrations.vllm import choose

    choose.adapt_current_platform()
