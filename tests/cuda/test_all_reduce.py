"""All-reduce on GPUs against the oracle, bit for bit, and in captured graphs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lamport_xpu.comm import Communicator, errors, reference
from lamport_xpu.comm.policy import UNLIMITED, Thresholds
from tests.cuda.gpus import run_on_gpus
from tests.payloads import DTYPES, as_bits, as_tensor, payload

WORLDS = (2, 4, 8)
SIZES = (2, 4, 6, 8, 62, 64, 66, 4098, 6144, 6146, (1 << 20) + 2)
ALGORITHMS = {"one-shot": Thresholds(UNLIMITED), "two-shot": Thresholds(0)}
OVERLAPS = {"none": 0, "prepare": 1, "chain": 2}


def _matches(comm: Communicator, dtype: str, count: int, call: int, special: bool, skip: int = 0) -> None:
    """`skip`: elements by which the tensor is moved off its allocation's alignment."""
    inputs = [payload(dtype, count, rank, call, special) for rank in range(comm.world_size)]
    expected = reference.all_reduce(inputs, dtype)
    x = as_tensor(inputs[comm.rank].copy(), dtype).cuda()
    x = torch.cat([x[:1].expand(skip), x])[skip:]
    out = torch.full((count + skip,), 7, dtype=x.dtype, device=x.device)[skip:]
    comm.all_reduce(x, out)
    torch.cuda.synchronize()
    comm.check()  # first: what a call that gave up has left behind is not worth comparing
    np.testing.assert_array_equal(as_bits(out.cpu()), expected)
    np.testing.assert_array_equal(as_bits(x.cpu()), inputs[comm.rank], "the input must stay as it was")
    assert comm.all_reduce(x, out=x) is x
    np.testing.assert_array_equal(as_bits(x.cpu()), expected)
    comm.check()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equals_oracle(world: int, algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        for call, (dtype, nbytes) in enumerate((d, n) for d in DTYPES for n in SIZES):
            if count := nbytes // (4 if dtype == "float32" else 2):
                for special in (False, True):
                    _matches(comm, dtype, count, 2 * call + special, special)
        for skip in (1, 2, 3, 4, 8):
            for dtype in DTYPES:
                _matches(comm, dtype, 1001, skip, False, skip)

    run_on_gpus(world, body, thresholds=ALGORITHMS[algorithm])


@pytest.mark.parametrize("world", [3, 5, 6, 7])
def test_other_worlds(world: int) -> None:
    def body(comm: Communicator) -> None:
        for call, dtype in enumerate(DTYPES):
            for count in (1, 3072, 300_001):
                _matches(comm, dtype, count, call, False)

    run_on_gpus(world, body, thresholds=Thresholds(8192))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_pattern(dtype: str) -> None:
    """Conversions to and from fp32 are exact, alone and added to one."""

    def body(comm: Communicator) -> None:
        every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
        for other in (np.zeros_like(every), payload(dtype, every.size, 0, special=True)):
            inputs = [every, other]
            out = comm.all_reduce(as_tensor(inputs[comm.rank].copy(), dtype).cuda())
            np.testing.assert_array_equal(as_bits(out.cpu()), reference.all_reduce(inputs, dtype))

    run_on_gpus(2, body)


class _Step:
    """An input that depends on a counter in GPU memory, its all-reduce, and a count of wrong elements: what a captured
    graph does again and again without the host. Small whole numbers, so sums are exact in every dtype."""

    def __init__(self, comm: Communicator, count: int, dtype: torch.dtype) -> None:
        self.comm = comm
        self.base = (torch.arange(count, device="cuda") % 8).to(dtype)
        self.offset = 7 * comm.rank % 16
        self.offsets = sum(7 * rank % 16 for rank in range(comm.world_size))

    def run(self, turn: torch.Tensor, wrong: torch.Tensor) -> None:
        scale = (turn % 3 + 1).to(self.base.dtype)
        sums = self.comm.all_reduce(self.base * scale + self.offset)
        wrong += (sums != self.comm.world_size * self.base * scale + self.offsets).sum()


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("world", WORLDS)
def test_graph_replayed_10_000_times(world: int, overlap: str) -> None:
    def body(comm: Communicator) -> int:
        comm._engine.set_launch(0, OVERLAPS[overlap])  # type: ignore[attr-defined]
        # One packet, one token, several blocks, two-shot.
        shapes = ((3, torch.float16), (3072, torch.bfloat16), (20_000, torch.float32), (200_000, torch.float16))
        steps = [_Step(comm, count, dtype) for count, dtype in shapes]
        turn = torch.zeros((), dtype=torch.int64, device="cuda")
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")

        def round_() -> None:
            turn.add_(1)
            for step in steps:
                step.run(turn, wrong)

        round_()  # outside first: torch's own kernels load
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            round_()
        for replay in range(10_000):
            graph.replay()
            if replay % 500 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        comm.check()
        assert int(turn) == 10_001
        return int(wrong)

    assert run_on_gpus(world, body, seconds=200, thresholds=Thresholds(128 << 10)) == [0] * world


@pytest.mark.parametrize("varied", ["grids", "overlap", "grids and overlap"])
@pytest.mark.parametrize("world", WORLDS)
def test_mixed_sizes(world: int, varied: str) -> None:
    """Sizes and algorithms in random order; every rank picks its own grid or overlap, or both, for every call."""

    def body(comm: Communicator) -> int:
        choose, grid = random.Random(7), random.Random(comm.rank)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        base = torch.arange(70_000, device="cuda").to(torch.float32) % 64
        for call in range(2000):
            count = choose.choice((1, 2, 3, 16, 17, 500, 3072, 3073, 20_000, 70_000))
            threads, overlap = grid.choice((0, 64, 128, 256)), grid.choice((0, 1, 2))
            comm._engine.set_launch(  # type: ignore[attr-defined]
                threads if "grids" in varied else 0, overlap if "overlap" in varied else 0
            )
            x = base[:count] * (1 + call % 113) + comm.rank * 7
            comm.all_reduce(x, out=x)
            expected = comm.world_size * base[:count] * (1 + call % 113) + 7 * sum(range(comm.world_size))
            wrong += (x != expected).sum()
        result = int(wrong)
        comm.check()
        return result

    assert run_on_gpus(world, body, thresholds=Thresholds(16 << 10), timeout=5) == [0] * world


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_8_ranks_of_4_mib_do_not_deadlock(algorithm: str) -> None:
    def body(comm: Communicator) -> bool:
        x = torch.arange(2 << 20, device="cuda").remainder_(64).to(torch.float16)
        good = True
        for _ in range(10):
            good &= bool((comm.all_reduce(x) == 8 * x).all())
        comm.check()
        return good

    assert run_on_gpus(8, body, thresholds=ALGORITHMS[algorithm]) == [True] * 8


def test_streams_and_bad_tensors() -> None:
    def body(comm: Communicator) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x = torch.ones(5000, device="cuda")
            for _ in range(10):
                comm.all_reduce(x, out=x)
        side.synchronize()
        assert (x == 2.0**10).all()
        assert comm.all_reduce(torch.empty(0, device="cuda")).numel() == 0
        good = torch.ones(8, device="cuda")
        bad: list[tuple[type[Exception], torch.Tensor, torch.Tensor | None]] = [
            (errors.WrongDeviceError, torch.ones(8), None),
            (errors.UnsupportedDtypeError, torch.ones(8, dtype=torch.float64, device="cuda"), None),
            (errors.NonContiguousError, torch.ones(8, 2, device="cuda")[:, 0], None),
            (errors.TensorError, good, torch.ones(9, device="cuda")),
            (errors.TooLargeError, torch.ones(5001, device="cuda"), None),
        ]
        for kind, tensor, out in bad:
            with pytest.raises(kind):
                comm.all_reduce(tensor, out if out is not None else tensor)
        assert (comm.all_reduce(good) == 2).all()

    run_on_gpus(2, body, max_bytes=20_000)
