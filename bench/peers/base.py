"""What every backend looks like to the benchmark. The same five methods on any device."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from lamport_xpu.bench.launch import World
from lamport_xpu.bench.units import DType

Call = Callable[[], object]
"""One in-place sum over the buffer it was prepared for; on a device, enqueued on the current stream."""


DEFAULT_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Setup:
    """What a backend is opened with. `max_bytes` is no less than the largest buffer prepared."""

    world: World
    device: str = "cpu"
    max_bytes: int = DEFAULT_MAX_BYTES
    cached_operations: bool = False


class Peer(ABC):
    """One backend. `open`, `prepare` and `close` are collective, the rest is local."""

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]] = ()
    """Modules that must import; probed by `unavailable`."""
    devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    def unavailable(self) -> str | None:
        """Why this backend cannot be opened here at all, in one line; None when it can."""
        if self.setup.device not in self.devices:
            return f"does not run on {self.setup.device}"
        for module in self.requires:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                return f"module {error.name} is not installed"
            except (ImportError, OSError, RuntimeError) as error:
                return f"cannot import {module}: {first_line(error)}"
        return None

    def unsupported(self, dtype: DType) -> str | None:
        """Why this backend cannot reduce `dtype` on the device it was set up for; None when it can."""
        return None

    @property
    def variant(self) -> str:
        """What distinguishes this backend's settings from its defaults; empty for the defaults."""
        return ""

    def version(self) -> str | None:
        """The library's own version, for the record."""
        return None

    @abstractmethod
    def open(self) -> None:
        """Connect all ranks."""

    @abstractmethod
    def prepare(self, buffer: torch.Tensor) -> Call:
        """Everything that can be done once for a buffer; what is left is what gets timed."""

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Call | None:
        """This library's own fusion of all-reduce, residual addition and RMS norm (eps 1e-6), if it has one; the call
        returns (normed, new residual). Collective like `prepare`."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free everything; called once after `open`, also when that failed."""


def first_line(error: BaseException) -> str:
    """An exception in one line, with its type where the message alone says little."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
