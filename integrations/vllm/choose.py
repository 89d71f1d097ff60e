"""Which platform class vLLM gets, decided while vLLM looks for its platform."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

# Under vLLM's logger, whose handlers are set up before plugins are asked.
logger = logging.getLogger("vllm.lamport_xpu")

#: Releases whose internals the adapter was tested against.
TESTED_VLLM = ("0.32",)

NAME = "lamport_xpu"

_CLASSES = {
    "vllm.platforms.cpu.CpuPlatform": "lamport_xpu.integrations.vllm.cpu_platform.LamportCpuPlatform",
    "vllm.platforms.xpu.XPUPlatform": "lamport_xpu.integrations.vllm.xpu_platform.LamportXpuPlatform",
}


def platform_class() -> str | None:
    """The class that stands for the stock platform vLLM would take, or None with the reason in the log."""
    if reason := _wrong_version():
        _decline(reason)
        return None
    if others := _other_platforms():
        logger.info(
            "lamport-xpu: platform plugin %s is active and vLLM takes only one; adapting it instead", ", ".join(others)
        )
        return None
    stock = _stock_platforms()
    if len(stock) != 1 or stock[0] not in _CLASSES:
        _decline(f"it serves vLLM's CPU and XPU platforms, and vLLM found {', '.join(stock) or 'none'}")
        return None
    return _CLASSES[stock[0]]


def adapt_current_platform() -> None:
    """Swaps the class of the platform object that all of vLLM holds by now."""
    from vllm.platforms import current_platform

    from lamport_xpu.integrations.vllm.platform import LamportPlatform

    if isinstance(current_platform, LamportPlatform):
        return
    if reason := _wrong_version():
        _decline(reason)
        return
    stock = current_platform.get_device_communicator_cls()
    if stock not in LamportPlatform.COMMUNICATORS:
        _decline(f"platform {type(current_platform).__name__} brings a communicator of its own, {stock}")
        return
    base = type(current_platform)
    current_platform.__class__ = type(f"Lamport{base.__name__}", (LamportPlatform, base), {})


def _decline(reason: str) -> None:
    logger.warning("lamport-xpu: off, vLLM keeps its own communicator: %s", reason)


def _wrong_version() -> str | None:
    from vllm.version import __version__

    if any(__version__.startswith(f"{tested}.") for tested in TESTED_VLLM):
        return None
    tested = ", ".join(f"{release}.x" for release in TESTED_VLLM)
    return f"vLLM {__version__} was not tested; install vLLM {tested}, or unset LAMPORT_VLLM"


def _other_platforms() -> list[str]:
    """Platform plugins beside us that claim this machine, by the same question vLLM asks them."""
    from vllm import envs

    found = []
    for plugin in entry_points(group="vllm.platform_plugins"):
        if plugin.name == NAME or (envs.VLLM_PLUGINS is not None and plugin.name not in envs.VLLM_PLUGINS):
            continue
        try:
            active = plugin.load()()
        except Exception:  # noqa: BLE001 - vLLM skips a plugin that fails, and reports it itself
            continue
        if active is not None:
            found.append(plugin.name)
    return found


def _stock_platforms() -> list[str]:
    from vllm.platforms import builtin_platform_plugins

    found = []
    for detect in builtin_platform_plugins.values():
        try:
            name = detect()
        except Exception:  # noqa: BLE001 - the same: a failing detection is none
            continue
        if name is not None:
            found.append(name)
    return found
