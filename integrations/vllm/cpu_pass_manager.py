"""vLLM's pass manager for the CPU, where vLLM itself uses none."""

from __future__ import annotations

from typing import Any

from torch import fx
from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.compilation.passes.pass_manager import PostGradPassManager


class _Nothing(InductorPass):
    def __call__(self, graph: fx.Graph) -> None:
        pass


class CpuPassManager(PostGradPassManager):
    """Leaves out the last pass, which knows GPU kernels by name; Inductor undoes functionalisation by itself."""

    def configure(self, config: Any) -> None:
        super().configure(config)
        self.fix_functionalization = _Nothing()
