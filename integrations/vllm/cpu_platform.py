"""vLLM's CPU platform with our communicator."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform

from lamport_xpu.integrations.vllm.platform import LamportPlatform


class LamportCpuPlatform(LamportPlatform, CpuPlatform):
    pass
