"""The fused collectives on GPUs, also in captured graphs: sums, residuals and caches bit for bit, norms near float64.

The order in which a GPU adds up a row's squares is its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lamport_xpu.comm import CollectiveTimeout, Communicator, errors, reference
from lamport_xpu.comm.policy import UNLIMITED, Thresholds
from tests.cuda.gpus import run_on_gpus
from tests.payloads import DTYPES, as_bits, payload
from tests.test_fused import ALLOWED, EPS, _norm_error, _qk_error, _qk_inputs, _rows, _tensor
from tests.test_sconv import CALLS, Paged

WORLDS = (1, 2, 4, 8)
ALGORITHMS = {"one-shot": Thresholds(UNLIMITED), "two-shot": Thresholds(0)}


def _gpu(pattern: NDArray[Any], dtype: str) -> torch.Tensor:
    tensor: torch.Tensor = _tensor(pattern, dtype).cuda()
    return tensor


def _same(tensor: torch.Tensor, expected: NDArray[Any], what: str = "") -> None:
    np.testing.assert_array_equal(as_bits(tensor.cpu()), expected.reshape(-1), what)


def _qk(comm: Communicator, dtype: str, tokens: int, q_size: int, kv_size: int, call: int, eps: float = EPS) -> float:
    """The error in units of the last place, of results out of place; in place they must be the same."""
    qkv, q_weight, k_weight = _qk_inputs(comm.world_size, dtype, tokens, q_size, kv_size, call)
    rank = comm.rank
    x, qw, kw = _gpu(qkv[rank], dtype), _gpu(q_weight[rank], dtype), _gpu(k_weight[rank], dtype)
    q, k = comm.qk_rms_norm(x, qw, kw, q_size, kv_size, eps)
    wide = x.new_zeros((tokens, x.shape[1] + 3))
    wide[:, 1:-2] = x
    strided = wide[:, 1:-2]
    parts = strided[:, :q_size], strided[:, q_size : q_size + kv_size]
    comm.qk_rms_norm(strided, qw, kw, q_size, kv_size, eps, out=parts)
    torch.cuda.synchronize()
    comm.check()
    assert torch.equal(parts[0], q)
    assert torch.equal(parts[1], k)
    _same(strided[:, q_size + kv_size :], qkv[rank][:, q_size + kv_size :], "values must stay as they were")
    assert (wide[:, [0, -2, -1]] == 0).all(), "what surrounds the rows must stay as it was"
    results = as_bits(q.cpu()), as_bits(k.cpu())
    return max(_qk_error(qkv, q_weight, k_weight, q_size, kv_size, dtype, rank, results))


def _norm(
    comm: Communicator, dtype: str, tokens: int, hidden: int, call: int, with_shared: bool, gemma: bool = False
) -> float:
    world, rank = comm.world_size, comm.rank
    routed = [_rows(dtype, tokens, hidden, r, call) for r in range(world)]
    shared = [_rows(dtype, tokens, hidden, r, call + 1000) for r in range(world)] if with_shared else None
    residual, weight = _rows(dtype, tokens, hidden, 99, call + 2000), payload(dtype, hidden, 99, call + 3000)
    total = reference.all_reduce(routed, dtype) if shared is None else reference.add_all_reduce(routed, shared, dtype)
    _, expected = reference.add_all_reduce_rms_norm(routed, shared, residual, weight, EPS, dtype, gemma)
    r, x, w = (_gpu(t, dtype) for t in (routed[rank], residual, weight))
    s = None if shared is None else _gpu(shared[rank], dtype)
    normed, new_residual = comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma)
    torch.cuda.synchronize()
    comm.check()
    _same(new_residual, expected, "new_residual")
    _same(r, routed[rank], "the input must stay as it was")
    comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma, out=(r, x))
    _same(r, as_bits(normed.cpu()), "normed in place")
    _same(x, expected, "new_residual in place")
    return _norm_error(total, residual, weight, dtype, gemma, as_bits(normed.cpu()))


def _sconv(
    comm: Communicator, dtype: str, calls: list[list[tuple[int, int]]], hidden: int, heads: int, block_size: int
) -> float:
    world, rank = comm.world_size, comm.rank
    shard = hidden // world
    conv_weight, norm_weight = _rows(dtype, hidden, 4, 99, 0), payload(dtype, hidden, 99, 1)
    paged = Paged(dtype, shard, heads, block_size, 160)
    paged.cache = paged.cache.cuda()
    oracle = reference.ShortConv(conv_weight, norm_weight, EPS, dtype, world)
    cw, nw = _gpu(conv_weight[rank * shard : (rank + 1) * shard], dtype), _gpu(norm_weight, dtype)
    worst = 0.0
    for number, call in enumerate(calls):
        tokens = paged.tokens(call)
        index = 10 * number
        routed = [_rows(dtype, len(tokens), hidden, r, index + 2) for r in range(world)]
        shared = [_rows(dtype, len(tokens), hidden, r, index + 3) for r in range(world)] if number % 2 else None
        residual = _rows(dtype, len(tokens), hidden, 99, index + 4)
        _, new_residual = oracle(routed, shared, residual, tokens)
        r, x = _gpu(routed[rank], dtype), _gpu(residual, dtype)
        s = None if shared is None else _gpu(shared[rank], dtype)
        arguments = (*(t.cuda() for t in paged.arguments(tokens)), paged.offset)
        normed, got = comm.rs_sconv_ag_norm(r, s, x, cw, nw, EPS, *arguments)
        torch.cuda.synchronize()
        comm.check()
        _same(got, new_residual, f"new_residual of call {number}")
        on_host, paged.cache = paged.cache, paged.cache.cpu()
        paged.check(oracle, rank, shard)
        paged.cache = on_host
        wide = reference.to_float32(new_residual.reshape(-1), dtype).astype(np.float64).reshape(residual.shape)
        weight = reference.to_float32(norm_weight, dtype).astype(np.float64)
        exact = wide / np.sqrt((wide * wide).mean(1) + EPS)[:, None] * weight
        worst = max(worst, float(reference.ulps(as_bits(normed.cpu()), exact, dtype).max()))
    return worst


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_add_all_reduce_equals_oracle(world: int, algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        for call, dtype in enumerate(DTYPES):
            for count in (1, 3, 3072, 3073, 150_001):
                for special in (False, True):
                    routed = [payload(dtype, count, rank, 2 * call, special) for rank in range(world)]
                    shared = [payload(dtype, count, rank, 2 * call + 1, special) for rank in range(world)]
                    r, s = _gpu(routed[comm.rank], dtype), _gpu(shared[comm.rank], dtype)
                    expected = reference.add_all_reduce(routed, shared, dtype)
                    if world == 1 and special:  # a GPU's own addition makes another NaN
                        continue
                    _same(comm.add_all_reduce(r, s), expected)
                    _same(r, routed[comm.rank], "the input must stay as it was")
                    _same(comm.add_all_reduce(r, s, out=s), expected, "into shared")
                    comm.check()

    run_on_gpus(world, body, thresholds=ALGORITHMS[algorithm])


@pytest.mark.parametrize("world", WORLDS)
def test_qk_rms_norm(world: int) -> None:
    def body(comm: Communicator) -> float:
        worst, call = 0.0, 0
        for dtype in DTYPES:
            for tokens in (1, 2, 3, 33, 257):
                for q_size, kv_size in ((6144 // world, 1024 // world), (96, 32), (33, 7), (1, 1)):
                    call += 1
                    worst = max(worst, _qk(comm, dtype, tokens, q_size, kv_size, call))
        return max(worst, _qk(comm, "bfloat16", 2048, 256, 64, call + 1))

    found = run_on_gpus(world, body)
    assert max(found) <= ALLOWED, found


@pytest.mark.parametrize("world", WORLDS)
def test_add_all_reduce_rms_norm(world: int) -> None:
    def body(comm: Communicator) -> float:
        worst, call = 0.0, 0
        for dtype in DTYPES:
            for tokens, hidden in (
                (1, 3072),
                (3, 3072),
                (8, 4096),
                (33, 96),
                (7, 33),
                (2, 1),
                (3, 10_000),
                (300, 3072),
            ):
                for with_shared in (False, True):
                    call += 1
                    worst = max(worst, _norm(comm, dtype, tokens, hidden, call, with_shared, call % 3 == 0))
        return worst

    found = run_on_gpus(world, body)
    assert max(found) <= ALLOWED, found


@pytest.mark.parametrize("world", WORLDS)
def test_rs_sconv_ag_norm(world: int) -> None:
    def body(comm: Communicator) -> float:
        worst = 0.0
        for dtype in DTYPES:
            for calls in CALLS.values():
                for hidden, heads, block_size in ((world * 64, 2, 4), (world * 60, 6, 4), (world * 13, 1, 3)):
                    worst = max(worst, _sconv(comm, dtype, calls, hidden, heads, block_size))
        return max(worst, _sconv(comm, "bfloat16", CALLS["thirty-three tokens"], 4096, 4, 4))

    found = run_on_gpus(world, body)
    assert max(found) <= ALLOWED, found


@pytest.mark.parametrize("world", [2, 8])
def test_mixed_at_random(world: int) -> None:
    """One workspace and one epoch for all: any sequence must come out right, in any way of launching."""

    def body(comm: Communicator) -> float:
        choose, overlap = random.Random(3), random.Random(comm.rank)
        worst = 0.0
        for call in range(150):
            kind, tokens, dtype = choose.randrange(4), choose.randrange(1, 40), choose.choice(DTYPES)
            comm._engine.set_launch(0, overlap.randrange(3))  # type: ignore[attr-defined]
            if kind == 0:
                worst = max(worst, _qk(comm, dtype, tokens, 96, 32, call))
            elif kind == 1:
                worst = max(worst, _norm(comm, dtype, tokens, 96, call, bool(call % 2)))
            elif kind == 2:
                worst = max(worst, _sconv(comm, dtype, CALLS["two tokens"], 64, 2, 4))
            else:
                x = [payload(dtype, 500 * tokens, rank, call) for rank in range(world)]
                _same(comm.all_reduce(_gpu(x[comm.rank], dtype)), reference.all_reduce(x, dtype))
        return worst

    found = run_on_gpus(world, body, thresholds=Thresholds(8192))
    assert max(found) <= ALLOWED, found


@pytest.mark.parametrize("wrong", ["eps", "one rank's sums", "residual"])
def test_negative_controls(wrong: str) -> None:
    """The comparisons above notice when something is not as it should be."""

    def body(comm: Communicator) -> bool:
        if wrong == "eps":
            return _qk(comm, "bfloat16", 3, 96, 32, 0, eps=3.0) > ALLOWED
        scale = 1.125 if comm.rank == 0 else 1.0
        if wrong == "one rank's sums":
            qkv, q_weight, k_weight = _qk_inputs(2, "bfloat16", 3, 96, 32, 0)
            x, qw, kw = (_gpu(t[comm.rank], "bfloat16") for t in (qkv, q_weight, k_weight))
            q, k = (as_bits(t.cpu()) for t in comm.qk_rms_norm(x * scale, qw, kw, 96, 32, EPS))
            return max(_qk_error(qkv, q_weight, k_weight, 96, 32, "bfloat16", comm.rank, (q, k))) > ALLOWED
        routed = [_rows("bfloat16", 3, 96, rank, 0) for rank in range(2)]
        residual, weight = _rows("bfloat16", 3, 96, 99, 2), payload("bfloat16", 96, 99, 3)
        r, x, w = (_gpu(t, "bfloat16") for t in (routed[comm.rank], residual, weight))
        _, got = comm.add_all_reduce_rms_norm(r, None, x + 1, w, EPS)
        expected = reference.add_all_reduce_rms_norm(routed, None, residual, weight, EPS, "bfloat16")[1]
        return bool((as_bits(got.cpu()) != expected.reshape(-1)).any())

    assert all(run_on_gpus(2, body))


def _decode_step(comm: Communicator) -> tuple[dict[str, torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]:
    """A layer's collectives through torch's operators, on inputs that a graph can be replayed with."""
    ops, handle = torch.ops.lamport_xpu, comm.torch_handle
    q_size, kv_size, hidden = 768, 128, 3072
    columns = {"qkv": q_size + 2 * kv_size, "routed": hidden, "shared": hidden, "residual": hidden}
    inputs = {name: torch.zeros(1, n, dtype=torch.float16, device="cuda") for name, n in columns.items()}
    ones = torch.ones(hidden, dtype=torch.float16, device="cuda")

    def step() -> tuple[torch.Tensor, ...]:
        q, k = ops.qk_rms_norm(inputs["qkv"], ones[:q_size], ones[:kv_size], q_size, kv_size, EPS, handle)
        normed, residual = ops.add_all_reduce_rms_norm(
            inputs["routed"], inputs["shared"], inputs["residual"], ones, EPS, False, handle
        )
        return q, k, normed, residual, ops.add_all_reduce(normed, inputs["shared"], handle)

    return inputs, step


@pytest.mark.parametrize("world", [2, 4, 8])
def test_graph_replayed(world: int) -> None:
    """A captured step gives what the same step gives outside a graph, replay after replay with new inputs."""

    def body(comm: Communicator) -> int:
        inputs, step = _decode_step(comm)
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            captured = step()
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        generator = torch.Generator("cuda").manual_seed(comm.rank)
        for turn in range(300):
            for name, tensor in inputs.items():
                tensor.normal_(generator=generator)
                if name == "residual":
                    tensor.fill_(turn % 7)
            graph.replay()
            replayed = [t.clone() for t in captured]
            for got, expected in zip(replayed, step(), strict=True):
                wrong += (got != expected).sum()
        torch.cuda.synchronize()
        comm.check()
        assert float(captured[3].abs().max()) > 0
        return int(wrong)

    assert run_on_gpus(world, body) == [0] * world


def test_bad_input_and_absent_peer() -> None:
    def body(comm: Communicator) -> None:
        y = torch.ones(3, 64, device="cuda")
        x, w = y[:2], torch.ones(64, device="cuda")
        bad: list[tuple[type[Exception], str, Callable[[], Any]]] = [
            (errors.WrongDeviceError, "residual", lambda: comm.add_all_reduce_rms_norm(x, None, x.cpu(), w, EPS)),
            (errors.TensorError, "weight", lambda: comm.add_all_reduce_rms_norm(x, None, x, w[:63], EPS)),
            (errors.TensorError, "eps", lambda: comm.add_all_reduce_rms_norm(x, None, x, w, 0.0)),
            (errors.TensorError, "overlap", lambda: comm.add_all_reduce(x, x.clone(), out=y[1:])),
        ]
        for kind, words, call in bad:
            with pytest.raises(kind, match=words):
                call()
        comm.add_all_reduce_rms_norm(x, None, x, w, EPS)  # it is still usable
        if comm.rank == 0:
            comm.qk_rms_norm(torch.ones(3, 64, device="cuda"), w[:32], w[:16], 32, 16, EPS)
            torch.cuda.synchronize()
            with pytest.raises(CollectiveTimeout, match=r"qk_rms_norm of 24 bytes .*rank 1"):
                comm.check()

    run_on_gpus(2, body, timeout=2)
