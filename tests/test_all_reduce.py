"""All-reduce over processes: every dtype, world and size against the oracle, bit for bit."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lamport_xpu import _host
from lamport_xpu.comm import Communicator, reference
from lamport_xpu.comm.policy import UNLIMITED, Thresholds
from tests.payloads import DTYPES, as_bits, as_tensor, payload
from tests.ranks import run_processes, run_ranks

SIZES = (2, 4, 6, 8, 62, 64, 66, 4098, 6144, 6146, (1 << 20) + 2)
ALGORITHMS = {"one-shot": Thresholds(UNLIMITED), "two-shot": Thresholds(0)}


def _count(nbytes: int, dtype: str) -> int:
    return nbytes // (4 if dtype == "float32" else 2)


def _matches(comm: Communicator, dtype: str, count: int, call: int, special: bool) -> None:
    inputs = [payload(dtype, count, rank, call, special) for rank in range(comm.world_size)]
    expected = reference.all_reduce(inputs, dtype)
    x = as_tensor(inputs[comm.rank].copy(), dtype)
    out = comm.all_reduce(x)
    np.testing.assert_array_equal(as_bits(out), expected)
    np.testing.assert_array_equal(as_bits(x), inputs[comm.rank], "the input must stay as it was")
    assert comm.all_reduce(x, out=x) is x
    np.testing.assert_array_equal(as_bits(x), expected)


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equals_oracle(world: int, algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        for call, (dtype, nbytes) in enumerate((d, n) for d in DTYPES for n in SIZES):
            if count := _count(nbytes, dtype):
                for special in (False, True):
                    _matches(comm, dtype, count, 2 * call + special, special)

    run_ranks(world, body, thresholds=ALGORITHMS[algorithm])


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same_bits(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = Path("/proc/cpuinfo").read_text()
    if isa != "plain" and {"avx2": "avx2", "avx512": "avx512bw"}[isa] not in flags:
        pytest.skip(f"this CPU has no {isa}")
    monkeypatch.setenv("LAMPORT_ISA", isa)

    def body(comm: Communicator) -> str:
        for call, dtype in enumerate(DTYPES):
            for special in (False, True):
                _matches(comm, dtype, 4099, call, special)
        return str(_host.isa())

    assert run_ranks(3, body) == [isa] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_of_16_bit_patterns(dtype: str) -> None:
    """Conversions to and from fp32 are exact for every 16-bit pattern (and many fp32 ones), alone and added to one."""

    def body(comm: Communicator) -> None:
        patterns = np.arange(1 << 16, dtype=np.uint32)
        every = patterns << 16 | 0x1234 if dtype == "float32" else patterns.astype(np.uint16)
        zero_or_one = payload(dtype, every.size, 0, special=True)
        for other in (np.zeros_like(every), zero_or_one):
            inputs = [every, other]
            out = comm.all_reduce(as_tensor(inputs[comm.rank].copy(), dtype))
            np.testing.assert_array_equal(as_bits(out), reference.all_reduce(inputs, dtype))

    run_ranks(2, body)


def test_64_mib() -> None:
    def body(comm: Communicator) -> None:
        _matches(comm, "bfloat16", 32 << 20, 0, False)

    run_ranks(2, body)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_10_000_mixed_calls(world: int) -> None:
    """Sizes, dtypes and algorithms in random order, a different payload every call."""

    def body(comm: Communicator) -> int:
        choose = random.Random(7)
        sizes = [choose.choice((1, 2, 3, 16, 17, 500, 3072, 3073, 20000)) for _ in range(10_000)]
        wrong = 0
        base = np.arange(20000, dtype=np.float32) % 64
        for call, count in enumerate(sizes):
            scale = np.float32(1 + call % 113)
            x = base[:count] * scale + np.float32(comm.rank * 7)  # small integers: sums are exact in every dtype
            expected = comm.world_size * base[:count] * scale + np.float32(7 * sum(range(comm.world_size)))
            wrong += not np.array_equal(comm.all_reduce(x, out=x), expected)
        return wrong

    thresholds = Thresholds(8192) if world > 2 else None
    assert run_ranks(world, body, thresholds=thresholds, seconds=280) == [0] * world


def test_numpy_shapes_and_torch_views() -> None:
    def body(comm: Communicator) -> None:
        x = np.full((3, 5, 7), comm.rank + 1, dtype=np.float16)
        assert (comm.all_reduce(x) == 3).all()
        assert comm.all_reduce(x).shape == (3, 5, 7)
        rows = torch.full((8, 6), float(comm.rank + 1))
        comm.all_reduce(rows[2:5], out=rows[2:5])  # a contiguous slice at an offset
        assert rows.sum() == 5 * 6 * (comm.rank + 1) + 3 * 6 * 3
        odd = torch.ones(11, dtype=torch.bfloat16)[1:]  # 2-byte aligned
        assert (comm.all_reduce(odd) == 2).all()
        assert comm.all_reduce(torch.empty(0)).numel() == 0

    run_ranks(2, body)


def test_large_sizes_go_to_the_library() -> None:
    """Above two_shot_max_bytes torch.distributed reduces: here a stand-in that shows it was called."""
    calls: list[int] = []

    def library(x: Any, out: Any) -> None:
        calls.append(x.numel())

    def main(rank: int) -> list[int]:
        from lamport_xpu.comm.bootstrap import LocalBootstrap

        comm = Communicator(LocalBootstrap(0, 1, "", 5), thresholds=Thresholds(64, 128), libraries={"float32": library})
        for count in (16, 32, 33):
            comm.all_reduce(torch.ones(count))
        comm.all_reduce(torch.ones(100, dtype=torch.float16))  # no library for fp16: ours, whatever the size
        comm.close()
        return calls

    # A world of one copies and never needs the library; two ranks do.
    assert run_processes(1, main) == [[]]

    def body(comm: Communicator) -> list[int]:
        comm._libraries["float32"] = library
        for count in (16, 32, 33):
            comm.all_reduce(torch.ones(count))
        return calls

    assert run_ranks(2, body, thresholds=Thresholds(64, 128), libraries={"float32": library}) == [[33], [33]]


def test_memory_budget() -> None:
    """Sized by chunk, not by tensor: below 32 MiB a rank at world 8 with default settings."""
    from lamport_xpu.comm import policy

    for chunks in policy.CHUNKS.values():
        native = _host.ShmWorkspace(0, 8, chunks.slot_bytes, chunks.slice_bytes, 1.0)
        assert native.total_bytes < 32 << 20


def test_works_oversubscribed_on_one_core() -> None:
    def body(comm: Communicator) -> None:
        for call in range(200):
            _matches(comm, "float16", 3072, call, False)

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        run_ranks(4, body)
    finally:
        os.sched_setaffinity(0, allowed)
