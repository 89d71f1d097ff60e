"""Start-up of one tensor-parallel group: every rank uses the adapter, or none does.

The ranks talk through torch's store and not through the group's collectives: a rank that never comes (it crashed, or
runs without the adapter) costs the others a bounded wait, and the order of the group's own collectives is untouched.
The verdict is one compare-and-set in the store, so a rank that gives up and a rank that was merely late agree.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from lamport_xpu.comm.bootstrap import TorchStoreBootstrap
from lamport_xpu.comm.communicator import Communicator
from lamport_xpu.comm.errors import LamportError
from lamport_xpu.integrations.vllm import probe

logger = logging.getLogger("vllm.lamport_xpu")

#: Seconds for a rank to appear: processes that import vLLM start some way apart.
PATIENCE = 60.0

_ON = "on"


@dataclass(frozen=True)
class Group:
    """What bring-up needs to know of a group."""

    name: str
    rank: int
    ranks: list[int]
    device: str
    store: Any

    def prefix(self) -> str:
        return f"lamport_xpu/{self.name}/{'-'.join(map(str, self.ranks))}"


def bring_up(
    group: Group, declined: str | None, timeout: float, fusions: frozenset[str]
) -> tuple[Communicator, frozenset[str]] | None:
    """The communicator and the fusions that work on all ranks, or None if all ranks keep the stock one.

    Args:
        group: this rank's group.
        declined: why this rank will not take part, if so.
        timeout: seconds a collective may wait for a rank.
        fusions: names in settings.FUSIONS to use where they work.
    """
    world_size = len(group.ranks)
    bootstrap = TorchStoreBootstrap(group.store, group.rank, world_size, PATIENCE, group.prefix())
    comm, working, problem = None, fusions, declined
    try:
        _exchange(bootstrap, problem)
        comm = Communicator(bootstrap, device=group.device, timeout=timeout)
        mine = probe.working(comm, group.device, fusions)
        working = fusions.intersection(*(set(text.decode().split(",")) for text in _names(bootstrap, mine)))
    except PeerProblem as error:
        problem = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, this rank must tell the others
        problem = f"rank {group.rank}: {str(error) or type(error).__name__}"
    verdict = _verdict(group, problem)
    if verdict is None and comm is not None:
        return comm, working
    if comm is not None:
        comm.close()
    logger.warning("lamport-xpu: off for %s, all ranks keep vLLM's communicator: %s", group.name, verdict)
    return None


class PeerProblem(LamportError):
    """A rank said that it cannot take part; the text is the same on all."""


def _exchange(bootstrap: TorchStoreBootstrap, problem: str | None) -> None:
    """All ranks' problems before the first collective step, so that none waits for one that will not come."""
    problems = [text.decode() for text in bootstrap.all_gather((problem or "").encode())]
    if text := _text(problems):
        raise PeerProblem(text)


def _names(bootstrap: TorchStoreBootstrap, mine: frozenset[str]) -> list[bytes]:
    return bootstrap.all_gather(",".join(sorted(mine)).encode())


def _text(problems: list[str]) -> str:
    """One problem that all share, or each rank's."""
    found = {rank: problem for rank, problem in enumerate(problems) if problem}
    if len(found) == len(problems) and len(set(found.values())) == 1:
        return problems[0]
    return "; ".join(f"rank {rank}: {problem}" for rank, problem in found.items())


def _verdict(group: Group, problem: str | None) -> str | None:
    """None if all ranks are on; else why not. The same decision on all ranks: the first to decide decides for all."""

    def decide(text: str) -> bytes:
        decided: bytes = group.store.compare_set(f"{group.prefix()}/verdict", "", text)
        return decided

    # Rounds of its own: ranks may have failed at different steps.
    ready = TorchStoreBootstrap(group.store, group.rank, len(group.ranks), PATIENCE, f"{group.prefix()}/ready")
    if problem is not None:
        decide(problem)  # before the others can see this rank as ready
    try:
        ready.all_gather(b"")
    except LamportError as error:
        problem = problem or str(error)
    decided = decide(problem or _ON)
    return None if decided == _ON.encode() else decided.decode()
