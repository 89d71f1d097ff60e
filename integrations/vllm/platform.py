"""What the adapter changes in a vLLM platform: the communicator, and what fusion needs."""

from __future__ import annotations

from typing import Any, ClassVar

from lamport_xpu.integrations.vllm import settings
from lamport_xpu.integrations.vllm.unsupported import unsupported


class LamportPlatform:
    """Mixed in front of a stock platform class; vLLM calls everything here on the class."""

    #: Stock communicator to ours.
    COMMUNICATORS: ClassVar[dict[str, str]] = {
        f"vllm.distributed.device_communicators.{module}.{name}": (
            f"lamport_xpu.integrations.vllm.communicator.Lamport{name}"
        )
        for module, name in (("cpu_communicator", "CpuCommunicator"), ("xpu_communicator", "XpuCommunicator"))
    }

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        stock: str = super().get_device_communicator_cls()  # type: ignore[misc]
        return cls.COMMUNICATORS.get(stock, stock)

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        """True on XPU anyway. On the CPU it keeps torch.compile from tracing into the collectives."""
        return True

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        if cls.device_type == "cpu":  # type: ignore[attr-defined]
            return "lamport_xpu.integrations.vllm.cpu_pass_manager.CpuPassManager"
        return super().get_pass_manager_cls()  # type: ignore[misc, no-any-return]

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)  # type: ignore[misc]
        if unsupported(vllm_config) is None:
            from lamport_xpu.integrations.vllm import compilation

            compilation.configure(vllm_config, settings.fusions())
