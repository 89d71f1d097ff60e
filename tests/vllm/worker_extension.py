"""Imported by every worker of a test engine (worker_extension_cls): shims, faults, and what tests ask a worker."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_tp_group

from tests.vllm import int4_on_cpu

int4_on_cpu.install()

if os.environ.get("TEST_BREAK_PROBE_ON_RANK") == os.environ.get("RANK", os.environ.get("LOCAL_RANK")):
    pass


def fixed_rank_sum(x: torch.Tensor) -> torch.Tensor:
    """The reference: fp32 in rank order, rounded once, over the stock group."""
    group = get_tp_group()
    parts = [torch.empty_like(x) for _ in range(group.world_size)]
    dist.all_gather(parts, x.contiguous(), group=group.device_group)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(x.dtype)


class TestExtension:
    """Methods for LLM.collective_rpc."""

    def test_communicator(self) -> Any:
        return get_tp_group().device_communicator

    def test_state(self) -> dict[str, Any]:
        """Classes in use, and what the adapter says of itself."""
        communicator = self.test_communicator()
        return {
            "class": type(communicator).__qualname__,
            "module": type(communicator).__module__,
            "on": getattr(communicator, "lamport", None) is not None,
            "fusions": sorted(getattr(communicator, "fusions", ())),
        }

    def test_counts(self) -> dict[str, int]:
        """Counters since the last call."""
        calls = self.test_communicator().counters.calls
        counts = {" ".join(key): value for key, value in calls.items()}
        calls.clear()
        return counts

    def test_swap_all_reduce(self, name: str) -> None:
        """Puts the reference, or one that reduces nothing, in the place of all_reduce; "" takes it away again."""
        communicator = self.test_communicator()
        swaps = {"fixed_rank_sum": fixed_rank_sum, "nothing": torch.clone}
        communicator.__dict__.pop("all_reduce", None)
        if name:
            communicator.all_reduce = swaps[name]

    def test_set_fusions(self, names: list[str]) -> None:
        self.test_communicator().fusions = frozenset(names)
