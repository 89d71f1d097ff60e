"""vLLM's XPU platform with our communicator. Apart, because importing the stock one needs the XPU kernels."""

from __future__ import annotations

from vllm.platforms.xpu import XPUPlatform

from lamport_xpu.integrations.vllm.platform import LamportPlatform


class LamportXpuPlatform(LamportPlatform, XPUPlatform):
    pass
