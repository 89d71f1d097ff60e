"""Runs a function on several ranks, each its own process, and brings results and tracebacks back."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from lamport_xpu.comm import Communicator

RankFunction = Callable[..., Any]


def run_ranks(world: int, function: RankFunction, *args: Any, seconds: float = 120, **options: Any) -> list[Any]:
    """`function(communicator, *args)` on `world` forked processes; their results in rank order.

    `options` go to Communicator.from_local. A rank's exception fails the test with that rank's traceback; a rank that
    does not answer in `seconds` fails it too, and all are ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "ranks.sock")

        def main(rank: int) -> Any:
            with Communicator.from_local(rank, world, address, **options) as comm:
                return function(comm, *args)

        return run_processes(world, main, seconds=seconds)


def run_processes(world: int, main: Callable[[int], Any], seconds: float = 120) -> list[Any]:
    """`main(rank)` on `world` forked processes; results in rank order."""
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [context.Process(target=_child, args=(main, rank, pipes[rank][1])) for rank in range(world)]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    outcomes: dict[int, tuple[bool, Any]] = {}
    receivers: dict[Any, int] = {receiver: rank for rank, (receiver, _) in enumerate(pipes)}
    try:
        while len(outcomes) < world:
            ready: list[Any] = wait([r for r, rank in receivers.items() if rank not in outcomes], timeout=seconds)
            if not ready:
                pytest.fail(f"ranks {sorted(set(range(world)) - set(outcomes))} gave no answer in {seconds} s")
            for receiver in ready:
                rank = receivers[receiver]
                try:
                    outcomes[rank] = receiver.recv()
                except EOFError:
                    outcomes[rank] = (False, f"rank {rank} ended without an answer")
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
    failures = [f"--- rank {rank} ---\n{value}" for rank, (ok, value) in sorted(outcomes.items()) if not ok]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    return [outcomes[rank][1] for rank in range(world)]


def _child(main: Callable[[int], Any], rank: int, pipe: Connection) -> None:
    try:
        if "torch" in sys.modules:
            # Threads of the parent's OpenMP do not survive a fork, and the first parallel operation waits for them.
            sys.modules["torch"].set_num_threads(1)
        outcome = (True, main(rank))
    except BaseException:  # noqa: BLE001 - reported to the parent, which fails the test
        outcome = (False, traceback.format_exc())
    pipe.send(outcome)
    pipe.close()
    os._exit(0)  # no exit handlers of the parent's libraries
