"""The fused collectives over processes: bit for bit against their oracles, and close to float64.

Negative controls: each comparison must fail when one thing about the call or the oracle is wrong.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lamport_xpu.comm import Communicator, reference
from lamport_xpu.comm.policy import UNLIMITED, Thresholds
from tests.payloads import DTYPES, as_bits, as_tensor, payload
from tests.ranks import run_ranks

ALGORITHMS = {"one-shot": Thresholds(UNLIMITED), "two-shot": Thresholds(0)}
EPS = float(np.float32(1e-6))

#: Units of the last place that a result may be away from the exact one: half for rounding it, half for everything else.
ALLOWED = 0.5 + 0.5


def _rows(dtype: str, rows: int, columns: int, rank: int, call: int, special: bool = False) -> NDArray[Any]:
    return payload(dtype, rows * columns, rank, call, special).reshape(rows, columns)


def _tensor(pattern: NDArray[Any], dtype: str) -> Any:
    return as_tensor(pattern.copy(), dtype)


def _same(tensor: Any, expected: NDArray[Any], what: str = "") -> None:
    np.testing.assert_array_equal(as_bits(tensor), expected.reshape(-1), what)


# add_all_reduce


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_add_all_reduce_equals_oracle(world: int, algorithm: str) -> None:
    def body(comm: Communicator) -> None:
        call = 0
        for dtype in DTYPES:
            for count in (1, 3, 32, 33, 3072, 3073, 150_001):
                for special in (False, True):
                    call += 2
                    routed = [payload(dtype, count, rank, call, special) for rank in range(world)]
                    shared = [payload(dtype, count, rank, call + 1, special) for rank in range(world)]
                    expected = reference.add_all_reduce(routed, shared, dtype)
                    r, s = (_tensor(x[comm.rank], dtype) for x in (routed, shared))
                    _same(comm.add_all_reduce(r, s), expected)
                    _same(r, routed[comm.rank], "the input must stay as it was")
                    if not special:  # torch's own addition keeps NaN payloads, which are no part of the promise
                        _same(comm.all_reduce(r + s), expected, "all_reduce(routed + shared)")
                    assert comm.add_all_reduce(r.clone(), s, out=s) is s
                    _same(s, expected, "into shared")
                    s = _tensor(shared[comm.rank], dtype)
                    _same(comm.add_all_reduce(r, s, out=r), expected, "into routed")

    run_ranks(world, body, thresholds=ALGORITHMS[algorithm], seconds=250)


def test_add_all_reduce_of_numpy_and_of_the_librarys_sizes() -> None:
    def library(x: Any, out: Any) -> None:
        out *= 100  # shows that it was called, after the addition

    def body(comm: Communicator) -> None:
        for count in (16, 40):
            out = comm.add_all_reduce(np.full(count, 2.0, np.float32), np.full(count, 1.0, np.float32))
            assert (out == (6 if count == 16 else 300)).all()

    run_ranks(2, body, thresholds=Thresholds(64, 128), libraries={"float32": library})


def test_add_all_reduce_negative_control() -> None:
    """Adding in fp32 and rounding after the reduction instead would be another result."""

    def body(comm: Communicator) -> bool:
        routed = [payload("bfloat16", 3072, rank, 0) for rank in range(2)]
        shared = [payload("bfloat16", 3072, rank, 1) for rank in range(2)]
        wide = sum(reference.to_float32(x, "bfloat16") for x in (*routed, *shared))
        out = as_bits(comm.add_all_reduce(*(_tensor(x[comm.rank], "bfloat16") for x in (routed, shared))))
        return bool((out != reference.from_float32(wide, "bfloat16")).any())

    assert all(run_ranks(2, body))


# qk_rms_norm


def _qk_inputs(
    world: int, dtype: str, tokens: int, q_size: int, kv_size: int, call: int, special: bool = False
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], list[NDArray[Any]]]:
    qkv = [_rows(dtype, tokens, q_size + 2 * kv_size, rank, call, special) for rank in range(world)]
    q_weight = [payload(dtype, q_size, rank, call + 1000) for rank in range(world)]
    k_weight = [payload(dtype, kv_size, rank, call + 2000) for rank in range(world)]
    return qkv, q_weight, k_weight


def _qk_case(
    comm: Communicator, dtype: str, tokens: int, q_size: int, kv_size: int, call: int, special: bool = False
) -> float:
    """Checks the bits out of place, in place and from strided rows; returns the error against float64 in ulps."""
    world, rank = comm.world_size, comm.rank
    qkv, q_weight, k_weight = _qk_inputs(world, dtype, tokens, q_size, kv_size, call, special)
    expected = reference.qk_rms_norm(qkv, q_weight, k_weight, q_size, kv_size, EPS, dtype)[rank]
    x, qw, kw = _tensor(qkv[rank], dtype), _tensor(q_weight[rank], dtype), _tensor(k_weight[rank], dtype)
    q, k = comm.qk_rms_norm(x, qw, kw, q_size, kv_size, EPS)
    assert q.is_contiguous()
    assert k.is_contiguous()
    _same(q, expected[0], "q")
    _same(k, expected[1], "k")
    _same(x, qkv[rank], "the input must stay as it was")
    wide = x.new_zeros((tokens, x.shape[1] + 3))
    wide[:, 1:-2] = x
    strided = wide[:, 1:-2]
    q, k = comm.qk_rms_norm(strided, qw, kw, q_size, kv_size, EPS)
    _same(q, expected[0], "q of strided rows")
    _same(k, expected[1], "k of strided rows")
    parts = strided[:, :q_size], strided[:, q_size : q_size + kv_size]
    comm.qk_rms_norm(strided, qw, kw, q_size, kv_size, EPS, out=parts)
    _same(parts[0], expected[0], "q in place")
    _same(parts[1], expected[1], "k in place")
    _same(strided[:, q_size + kv_size :], qkv[rank][:, q_size + kv_size :], "values must stay as they were")
    assert (wide[:, [0, -2, -1]] == 0).all(), "what surrounds the rows must stay as it was"
    if special:
        return 0.0
    return max(_qk_error(qkv, q_weight, k_weight, q_size, kv_size, dtype, rank, (as_bits(q), as_bits(k))))


def _qk_error(
    qkv: list[NDArray[Any]],
    q_weight: list[NDArray[Any]],
    k_weight: list[NDArray[Any]],
    q_size: int,
    kv_size: int,
    dtype: str,
    rank: int,
    results: tuple[NDArray[Any], NDArray[Any]],
) -> list[float]:
    errors = []
    for start, size, weights, result in ((0, q_size, q_weight, results[0]), (q_size, kv_size, k_weight, results[1])):
        rows = [reference.to_float32(x[:, start : start + size].copy(), dtype).astype(np.float64) for x in qkv]
        mean = sum((r * r).sum(1) for r in rows) / (size * len(qkv))
        weight = reference.to_float32(weights[rank], dtype).astype(np.float64)
        exact = rows[rank] / np.sqrt(mean + EPS)[:, None] * weight
        errors.append(float(reference.ulps(result, exact, dtype).max()))
    return errors


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("dtype", DTYPES)
def test_qk_rms_norm_equals_oracle(world: int, dtype: str) -> None:
    def body(comm: Communicator) -> float:
        worst, call = 0.0, 0
        for tokens in (1, 2, 3, 7, 8, 9, 33, 64):
            # MiniMax-M2's split of this world, and sizes that fill no packet.
            for q_size, kv_size in ((6144 // world, 1024 // world), (96, 32), (33, 7), (1, 1)):
                call += 1
                worst = max(worst, _qk_case(comm, dtype, tokens, q_size, kv_size, call))
        return worst

    errors = run_ranks(world, body, seconds=250)
    assert max(errors) <= ALLOWED, errors


@pytest.mark.parametrize("tokens", [2047, 2048])
def test_qk_rms_norm_of_many_tokens(tokens: int) -> None:
    def body(comm: Communicator) -> float:
        return _qk_case(comm, "bfloat16", tokens, 256, 64, 5)

    assert max(run_ranks(2, body)) <= 1.0
    assert run_ranks(3, functools.partial(_qk_tiny, tokens=tokens)) == [True] * 3


def _qk_tiny(comm: Communicator, tokens: int) -> bool:
    return _qk_case(comm, "float16", tokens, 16, 8, 6) <= 1.0


def test_qk_rms_norm_of_special_values() -> None:
    """NaN, infinity, denormals and signed zeros: the oracle's bits, and a row of zeros gives zeros."""

    def body(comm: Communicator) -> None:
        for call, dtype in enumerate(DTYPES):
            _qk_case(comm, dtype, 5, 96, 32, call, special=True)
            zeros = _tensor(np.zeros((3, 96 + 64), np.uint32 if dtype == "float32" else np.uint16), dtype)
            weight = zeros.new_ones(96)
            q, k = comm.qk_rms_norm(zeros, weight, weight[:32], 96, 32, EPS)
            assert not as_bits(q).any()
            assert not as_bits(k).any()

    run_ranks(3, body)


def test_qk_scales_are_the_same_bits_on_every_rank() -> None:
    """Ranks that hold the same columns must get the same results, though each adds up another's sums in between."""

    def body(comm: Communicator) -> bytes:
        x = _tensor(_rows("float32", 9, 64, comm.rank, 0), "float32")
        x[:, 0], x[:, 16] = 1.0, 1.0
        ones = x.new_ones(16)
        q, k = comm.qk_rms_norm(x[:, :48], ones, ones, 16, 16, EPS)
        return bytes(as_bits(q[:, 0]).tobytes() + as_bits(k[:, 0]).tobytes())

    for world in (2, 5, 8):
        assert len(set(run_ranks(world, body))) == 1


@pytest.mark.parametrize("wrong", ["eps", "full", "weight", "one rank's sums"])
def test_qk_rms_norm_negative_controls(wrong: str) -> None:
    def body(comm: Communicator) -> float:
        qkv, q_weight, k_weight = _qk_inputs(2, "bfloat16", 3, 96, 32, 0)
        x, qw, kw = (_tensor(t[comm.rank], "bfloat16") for t in (qkv, q_weight, k_weight))
        if wrong == "weight":
            qw = qw + 0.25
        if wrong == "one rank's sums" and comm.rank == 0:
            x = x * 1.125
        q, k = comm.qk_rms_norm(x, qw, kw, 96, 32, 3.0 if wrong == "eps" else EPS)
        if wrong == "full":
            q = q * 2**0.5
        return max(_qk_error(qkv, q_weight, k_weight, 96, 32, "bfloat16", comm.rank, (as_bits(q), as_bits(k))))

    assert min(run_ranks(2, body)) > 1.0


# add_all_reduce_rms_norm


def _norm_case(
    comm: Communicator, dtype: str, tokens: int, hidden: int, call: int, with_shared: bool, gemma: bool, special: bool
) -> float:
    world, rank = comm.world_size, comm.rank
    routed = [_rows(dtype, tokens, hidden, r, call, special) for r in range(world)]
    shared = [_rows(dtype, tokens, hidden, r, call + 1000, special) for r in range(world)] if with_shared else None
    residual = _rows(dtype, tokens, hidden, 99, call + 2000, special)
    weight = payload(dtype, hidden, 99, call + 3000)
    normed, new_residual = reference.add_all_reduce_rms_norm(routed, shared, residual, weight, EPS, dtype, gemma)
    r, x, w = (_tensor(t, dtype) for t in (routed[rank], residual, weight))
    s = None if shared is None else _tensor(shared[rank], dtype)
    got = comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma)
    _same(got[0], normed, "normed")
    _same(got[1], new_residual, "new_residual")
    _same(r, routed[rank], "the input must stay as it was")
    _same(x, residual, "the residual must stay as it was")
    total = comm.all_reduce(r) if s is None else comm.add_all_reduce(r, s)
    if not special:
        _same(got[1], as_bits((total.float() + x.float()).to(total.dtype)), "residual of the separate steps")
    comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma, out=(r, x))
    _same(r, normed, "normed in place")
    _same(x, new_residual, "new_residual in place")
    if special:
        return 0.0
    return _norm_error(as_bits(total), residual, weight, dtype, gemma, normed)


def _norm_error(
    total: NDArray[Any], residual: NDArray[Any], weight: NDArray[Any], dtype: str, gemma: bool, normed: NDArray[Any]
) -> float:
    wide = [reference.to_float32(t.reshape(-1), dtype).astype(np.float64) for t in (total, residual, weight)]
    # The all-reduce has rounded its result; in fp32 the new residual is the sum that is normalised.
    x = (wide[0] + wide[1]).reshape(residual.shape)
    x = x.astype(np.float32).astype(np.float64) if dtype == "float32" else x
    exact = x / np.sqrt((x * x).mean(1) + EPS)[:, None] * (wide[2] + gemma)
    return float(reference.ulps(normed, exact, dtype).max())


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_all_reduce_rms_norm_equals_oracle(world: int, dtype: str) -> None:
    def body(comm: Communicator) -> float:
        worst, call = 0.0, 0
        for tokens, hidden in ((1, 3072), (3, 3072), (8, 4096), (33, 96), (7, 33), (2, 1), (65, 3072)):
            for with_shared in (False, True):
                call += 1
                gemma = call % 3 == 0
                worst = max(worst, _norm_case(comm, dtype, tokens, hidden, call, with_shared, gemma, False))
                if hidden < 100:
                    _norm_case(comm, dtype, tokens, hidden, call, with_shared, gemma, True)
        return worst

    errors = run_ranks(world, body, seconds=280)
    assert max(errors) <= ALLOWED, errors


def test_add_all_reduce_rms_norm_through_several_chunks() -> None:
    """Rows that do not fit a slot at once, with a short last chunk."""

    def body(comm: Communicator) -> float:
        return _norm_case(comm, "bfloat16", 301, 3072, 0, True, False, False)

    assert max(run_ranks(3, body)) <= 1.0


@pytest.mark.parametrize("wrong", ["gemma", "residual", "shared", "eps"])
def test_add_all_reduce_rms_norm_negative_controls(wrong: str) -> None:
    def body(comm: Communicator) -> bool:
        routed = [_rows("bfloat16", 3, 96, rank, 0) for rank in range(2)]
        shared = [_rows("bfloat16", 3, 96, rank, 1) for rank in range(2)]
        residual, weight = _rows("bfloat16", 3, 96, 99, 2), payload("bfloat16", 96, 99, 3)
        expected = reference.add_all_reduce_rms_norm(
            routed,
            None if wrong == "shared" else shared,
            routed[0] if wrong == "residual" else residual,
            weight,
            3.0 if wrong == "eps" else EPS,
            "bfloat16",
            wrong == "gemma",
        )
        r, s, x, w = (_tensor(t, "bfloat16") for t in (routed[comm.rank], shared[comm.rank], residual, weight))
        normed, _ = comm.add_all_reduce_rms_norm(r, s, x, w, EPS)
        return bool((as_bits(normed) != expected[0].reshape(-1)).any())

    assert all(run_ranks(2, body))


# All of them


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same_bits(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = Path("/proc/cpuinfo").read_text()
    if isa != "plain" and {"avx2": "avx2", "avx512": "avx512bw"}[isa] not in flags:
        pytest.skip(f"this CPU has no {isa}")
    monkeypatch.setenv("LAMPORT_ISA", isa)

    def body(comm: Communicator) -> None:
        for call, dtype in enumerate(DTYPES):
            for special in (False, True):
                _qk_case(comm, dtype, 9, 97, 33, call, special)
                _norm_case(comm, dtype, 9, 97, call, True, False, special)
                routed = [payload(dtype, 4099, rank, call, special) for rank in range(3)]
                shared = [payload(dtype, 4099, rank, call + 9, special) for rank in range(3)]
                out = comm.add_all_reduce(*(_tensor(x[comm.rank], dtype) for x in (routed, shared)))
                _same(out, reference.add_all_reduce(routed, shared, dtype))

    run_ranks(3, body)


@pytest.mark.parametrize("world", [2, 4])
def test_mixed_with_all_reduce_at_random(world: int) -> None:
    """Every collective shares one workspace and one epoch: any sequence must come out right."""

    def body(comm: Communicator) -> None:
        choose = np.random.default_rng(3)
        for call in range(600):
            kind, tokens = choose.integers(4), int(choose.integers(1, 40))
            dtype = DTYPES[choose.integers(3)]
            if kind == 0:
                _qk_case(comm, dtype, tokens, 96, 32, call)
            elif kind == 1:
                _norm_case(comm, dtype, tokens, 96, call, bool(call % 2), False, False)
            else:
                x = [payload(dtype, 500 * tokens, rank, call) for rank in range(world)]
                _same(comm.all_reduce(_tensor(x[comm.rank], dtype)), reference.all_reduce(x, dtype))

    run_ranks(world, body, thresholds=Thresholds(8192) if world > 2 else None, seconds=280)


def test_oversubscribed_on_one_core() -> None:
    def body(comm: Communicator) -> None:
        for call in range(50):
            _qk_case(comm, "float16", 3, 96, 32, call)
            _norm_case(comm, "float16", 3, 96, call, True, False, False)

    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        run_ranks(4, body, seconds=250)
    finally:
        os.sched_setaffinity(0, allowed)
