"""Imported by every worker of a test engine (worker_extension_cls): shims, faults, and what tests ask a worker."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_tp_group
from vllm.platforms import current_platform

from lamport_xpu.bench import int4_on_cpu

int4_on_cpu.install()


def _gathered(x: torch.Tensor) -> list[torch.Tensor]:
    group = get_tp_group()
    parts = [torch.empty_like(x) for _ in range(group.world_size)]
    dist.all_gather(parts, x.contiguous(), group=group.device_group)
    return parts


def fixed_rank_sum(x: torch.Tensor) -> torch.Tensor:
    """The reference: over the stock group, fp32 in rank order, rounded once."""
    total, *rest = (part.float() for part in _gathered(x))
    for part in rest:
        total = total + part
    return total.to(x.dtype)


def sum_rounded_often(x: torch.Tensor) -> torch.Tensor:
    """Rounds after every addition, from the last rank on: what the reference must be told from."""
    total, *rest = reversed(_gathered(x))
    for part in rest:
        total = total + part
    return total


def no_sum(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


SWAPS = {function.__name__: function for function in (fixed_rank_sum, sum_rounded_often, no_sum)}


def break_probe(broken: int) -> None:
    """Rank `broken` misreads what arrives, so that its functional probe finds a wrong sum."""
    from lamport_xpu.comm import engines

    class BrokenOnOneRank(engines.Cpu):
        def workspace(self, rank: int, *args: Any) -> Any:
            self.wrong = int(rank == broken)
            return super().workspace(rank, *args)

        def array(self, tensor: Any) -> Any:
            return tensor + self.wrong

    engines._DEVICES["cpu"] = BrokenOnOneRank


if "TEST_BREAK_PROBE" in os.environ:
    break_probe(int(os.environ["TEST_BREAK_PROBE"]))


class TestExtension:
    """Methods for LLM.collective_rpc."""

    def test_communicator(self) -> Any:
        return get_tp_group().device_communicator

    def test_state(self) -> dict[str, Any]:
        """Classes in use, and what the adapter says of itself."""
        communicator = self.test_communicator()
        return {
            "platform": [f"{c.__module__}.{c.__qualname__}" for c in type(current_platform).__mro__[:2]],
            "class": f"{type(communicator).__module__}.{type(communicator).__qualname__}",
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
        """Puts a function of SWAPS in the place of all_reduce; "" takes it away again."""
        communicator = self.test_communicator()
        communicator.__dict__.pop("all_reduce", None)
        if name:
            communicator.all_reduce = SWAPS[name]

    def test_pid(self) -> int:
        return os.getpid()

    def test_set_fusions(self, names: list[str]) -> None:
        self.test_communicator().fusions = frozenset(names)
