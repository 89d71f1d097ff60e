"""One rank of the SYCL-on-CPU tests: its shared memory goes straight into kernels on the SYCL CPU device.

Started by test_sycl_cpu.py, which has set the environment that the SYCL runtime reads before it starts.
Every result is compared, bit for bit, with the oracle and with what the host target computes from the same inputs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest

from lamport_xpu import _host, _sycl
from lamport_xpu.comm import reference
from lamport_xpu.comm.bootstrap import LocalBootstrap
from lamport_xpu.comm.errors import ClosedError, CollectiveTimeout
from lamport_xpu.comm.policy import DTYPES, UNLIMITED, ChunkSizes
from lamport_xpu.comm.workspace import Workspace

# Small chunks, so that the larger sizes stream through several generations.
CHUNKS = ChunkSizes(slot_bytes=4096, slice_bytes=2048)
SIZES = (1, 2, 3, 7, 8, 9, 255, 3072, 5000)
CALL_TIMEOUT_S = 20.0


class Rank:
    def __init__(
        self,
        bootstrap: LocalBootstrap,
        one_shot_max: int,
        yielding: bool,
        timeout: float,
        chunks: ChunkSizes = CHUNKS,
    ) -> None:
        self.bootstrap, self.rank, self.world = bootstrap, bootstrap.rank, bootstrap.world_size
        limits = [(one_shot_max, UNLIMITED)] * 3
        sizes = (chunks.slot_bytes, chunks.slice_bytes)
        self.workspaces = []
        for _ in range(2):  # one for the SYCL kernels, one for the host target
            native = _host.ShmWorkspace(self.rank, self.world, *sizes, CALL_TIMEOUT_S)
            self.workspaces.append(Workspace(bootstrap, native, "cpu", chunks))
        sycl, host = (workspace.native for workspace in self.workspaces)
        self.queue = _sycl.Queue.create("cpu")
        begin = time.perf_counter()
        self.sycl = _sycl.SyclCollectives(
            self.queue, sycl.addresses, sycl.status_address, self.rank, *sizes, limits, 1 << 20, timeout, yielding
        )
        self.load_seconds = time.perf_counter() - begin
        self.host = _host.HostCollectives(host, limits, 8, 1 << 20)

    def close(self) -> None:
        self.bootstrap.barrier()
        for workspace in self.workspaces:
            workspace.close()
        self.bootstrap.close()


def inputs(world: int, count: int, dtype: str, seed: int) -> list[np.ndarray]:
    """A tensor per rank, as bit patterns: ordinary numbers, and every special one somewhere."""
    patterns = []
    for rank in range(world):
        rng = np.random.default_rng([seed, rank, count])
        x = reference.from_float32(rng.standard_normal(count, dtype=np.float32) * 100, dtype)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 65504.0, 3e38], dtype=np.float32)
        where = rng.integers(0, count, size=count // 8)
        x[where] = reference.from_float32(special, dtype)[rng.integers(0, special.size, size=where.size)]
        patterns.append(x)
    return patterns


def compare(ranks: Rank, count: int, dtype: str, seed: int) -> None:
    everyone = inputs(ranks.world, count, dtype, seed)
    expected = reference.all_reduce([x if dtype == "bfloat16" else x.view(dtype) for x in everyone], dtype)
    mine = everyone[ranks.rank]
    guarded = np.full(count + 8, 0x5A, dtype=mine.dtype)  # what lies past the end must stay as it is
    guarded[:count] = mine
    address = guarded.ctypes.data
    in_place = seed % 2 == 0
    out = guarded if in_place else np.full_like(guarded, 0x5A)
    nbytes = count * mine.itemsize
    assert ranks.sycl.all_reduce_raw(address, out.ctypes.data, nbytes, DTYPES.index(dtype))
    ranks.sycl.wait()
    what = f"rank {ranks.rank}, {count} x {dtype}, seed {seed}"
    np.testing.assert_array_equal(out[:count], expected, err_msg=f"oracle: {what}")
    assert (out[count:] == 0x5A).all(), f"wrote past the end: {what}"
    if dtype != "bfloat16":  # NumPy has no bfloat16, so the host target cannot be handed one here
        host = mine.copy().view(dtype)
        assert ranks.host.all_reduce(host, host)
        np.testing.assert_array_equal(reference.bits(host, dtype), out[:count], err_msg=f"host target: {what}")


def results(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """Every size, dtype and algorithm, in an order that lets calls of different grids follow each other."""
    for one_shot_max in (UNLIMITED, 0):
        ranks = Rank(bootstrap, one_shot_max, arguments.yielding, CALL_TIMEOUT_S * arguments.patience)
        begin = time.perf_counter()
        calls = 0
        for seed in range(arguments.rounds):
            for dtype in DTYPES:
                for count in SIZES:
                    compare(ranks, count, dtype, seed)
                    calls += 1
        if ranks.rank == 0:
            name = "one-shot" if one_shot_max else "two-shot"
            took = time.perf_counter() - begin
            print(
                f"{name}: {calls} calls of {ranks.world} ranks bit-equal, {took:.1f} s, load {ranks.load_seconds:.2f} s"
            )
        ranks.bootstrap.barrier()
        for workspace in ranks.workspaces:
            workspace.close()


def graph(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """Calls of two sizes, recorded once, replayed over new inputs; between replays, a call outside the graph."""
    ranks = Rank(bootstrap, UNLIMITED, arguments.yielding, CALL_TIMEOUT_S)
    if not ranks.queue.can_record:
        print("no graphs on this device")
        ranks.close()
        return
    sizes = (3072, 8)
    tensors = [np.zeros(count, dtype=np.float32) for count in sizes]
    recorded = _sycl.Graph(ranks.queue)
    recorded.begin()
    for tensor in tensors:
        ranks.sycl.all_reduce(tensor, tensor)
    recorded.end()
    replays = 50
    for replay in range(replays):
        everyone = [[inputs(ranks.world, count, "float32", replay)[r] for count in sizes] for r in range(ranks.world)]
        for tensor, mine in zip(tensors, everyone[ranks.rank], strict=True):
            tensor[:] = mine.view(np.float32)
        recorded.replay()
        ranks.sycl.wait()
        for which, tensor in enumerate(tensors):
            expected = reference.all_reduce([e[which].view(np.float32) for e in everyone], "float32")
            np.testing.assert_array_equal(reference.bits(tensor, "float32"), expected, err_msg=f"replay {replay}")
        if replay % 3 == 0:
            compare(ranks, 255, "float16", replay)
    if ranks.rank == 0:
        print(f"graph: {replays} replays of {len(sizes)} calls bit-equal")
    ranks.close()


def timeout(bootstrap: LocalBootstrap, arguments: argparse.Namespace) -> None:
    """The last rank never calls: the others must name it, and stay refused afterwards."""
    ranks = Rank(bootstrap, UNLIMITED, arguments.yielding, 1.0)
    absent = ranks.world - 1
    x = np.ones(64, dtype=np.float32)
    if ranks.rank != absent:
        ranks.sycl.all_reduce(x, x)
        with pytest.raises(CollectiveTimeout) as late:
            ranks.sycl.wait()
        assert late.value.peer == absent
        print(f"rank {ranks.rank}: {late.value}")
        with pytest.raises(ClosedError, match="abandoned"):
            ranks.sycl.all_reduce(x, x)
    ranks.close()


Scenario = Callable[[LocalBootstrap, argparse.Namespace], None]


def run(scenarios: dict[str, Scenario]) -> None:
    """The scenario of the command line, as the rank it says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=list(scenarios))
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("address")
    parser.add_argument("--core", type=int, default=-1, help="pin to this core")
    parser.add_argument("--yielding", action="store_true")
    parser.add_argument("--patience", type=float, default=1.0)
    parser.add_argument("--op", default="", help="which collective, where a scenario is about one")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.core >= 0:
        os.sched_setaffinity(0, {arguments.core})
    bootstrap = LocalBootstrap(arguments.rank, arguments.world, arguments.address, 60.0)
    scenarios[arguments.scenario](bootstrap, arguments)


if __name__ == "__main__":
    run({"results": results, "graph": graph, "timeout": timeout})
    sys.stdout.flush()
