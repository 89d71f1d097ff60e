"""The fused collectives on a device whose sums are made in another order than the host's.

What does not depend on that order is compared with the oracle bit for bit: sums over ranks, residuals, caches. What
does, normalised rows, is held to float64: half a unit in the last place for the rounding of the result, which no
implementation escapes, and half a unit for everything else.

`comm` has Communicator's methods; `wait` returns once the device has done what was asked of it so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamport_xpu.comm import reference
from tests.payloads import DTYPES, as_bits, payload
from tests.test_fused import ALLOWED, EPS, _norm_error, _qk_error, _qk_inputs, _rows, _same, _tensor
from tests.test_sconv import CALLS, Paged

Wait = Callable[[], None]


def add_all_reduce(comm: Any, wait: Wait) -> int:
    calls = 0
    for dtype in DTYPES:
        for count in (1, 3, 32, 33, 3072, 3073, 9001):
            for special in (False, True):
                calls += 2
                routed = [payload(dtype, count, rank, calls, special) for rank in range(comm.world_size)]
                shared = [payload(dtype, count, rank, calls + 1, special) for rank in range(comm.world_size)]
                expected = reference.add_all_reduce(routed, shared, dtype)
                r, s = (_tensor(x[comm.rank], dtype) for x in (routed, shared))
                out = comm.add_all_reduce(r, s)
                wait()
                _same(out, expected)
                _same(r, routed[comm.rank], "the input must stay as it was")
                comm.add_all_reduce(r, s, out=s)
                wait()
                _same(s, expected, "into shared")
    return calls


def qk_rms_norm(comm: Any, wait: Wait) -> float:
    """The worst error in units of the last place."""
    worst, call = 0.0, 0
    # MiniMax-M2's split of this world, and sizes that fill no packet, no word, no sub-group.
    for q_size, kv_size in ((6144 // comm.world_size, 1024 // comm.world_size), (96, 32), (33, 7), (1, 1)):
        for tokens in (1, 2, 3, 9):
            for dtype in DTYPES:
                call += 1
                worst = max(worst, _qk_case(comm, wait, dtype, tokens, q_size, kv_size, call))
    _qk_specials(comm, wait)
    return worst


def _qk_case(comm: Any, wait: Wait, dtype: str, tokens: int, q_size: int, kv_size: int, call: int) -> float:
    qkv, q_weight, k_weight = _qk_inputs(comm.world_size, dtype, tokens, q_size, kv_size, call)
    rank = comm.rank
    x, qw, kw = (_tensor(t[rank], dtype) for t in (qkv, q_weight, k_weight))
    q, k = comm.qk_rms_norm(x, qw, kw, q_size, kv_size, EPS)
    wide = x.new_zeros((tokens, x.shape[1] + 3))
    wide[:, 1:-2] = x
    strided = wide[:, 1:-2]  # 16-bit rows that begin in the middle of a word
    parts = strided[:, :q_size], strided[:, q_size : q_size + kv_size]
    comm.qk_rms_norm(strided, qw, kw, q_size, kv_size, EPS, out=parts)
    wait()
    _same(x, qkv[rank], "the input must stay as it was")
    _same(parts[0], as_bits(q), "q in place, of strided rows")
    _same(parts[1], as_bits(k), "k in place, of strided rows")
    _same(strided[:, q_size + kv_size :], qkv[rank][:, q_size + kv_size :], "values must stay as they were")
    assert (wide[:, [0, -2, -1]] == 0).all(), "what surrounds the rows must stay as it was"
    return max(_qk_error(qkv, q_weight, k_weight, q_size, kv_size, dtype, rank, (as_bits(q), as_bits(k))))


def _qk_specials(comm: Any, wait: Wait) -> None:
    for call, dtype in enumerate(DTYPES):
        qkv, q_weight, k_weight = _qk_inputs(comm.world_size, dtype, 5, 96, 32, call, special=True)
        expected = reference.qk_rms_norm(qkv, q_weight, k_weight, 96, 32, EPS, dtype)[comm.rank]
        x, qw, kw = (_tensor(t[comm.rank], dtype) for t in (qkv, q_weight, k_weight))
        results = comm.qk_rms_norm(x, qw, kw, 96, 32, EPS)
        wait()
        for result, pattern in zip(results, expected, strict=True):
            _close(as_bits(result), pattern, dtype)


def _close(found: NDArray[Any], expected: NDArray[Any], dtype: str) -> None:
    """NaN and infinity where the host has them, numbers within a unit in the last place."""
    got, wanted = (reference.to_float32(p.reshape(-1), dtype).astype(np.float64) for p in (found, expected))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(got[~finite], wanted[~finite])
    assert (reference.ulps(found.reshape(-1)[finite], wanted[finite], dtype) <= 1).all()


def add_all_reduce_rms_norm(comm: Any, wait: Wait) -> float:
    worst, call = 0.0, 0
    for tokens, hidden in ((1, 3072), (3, 3072), (9, 96), (7, 33), (2, 1), (33, 4096)):
        for dtype in DTYPES:
            call += 1
            worst = max(worst, _norm_case(comm, wait, dtype, tokens, hidden, call))
    return worst


def _norm_case(comm: Any, wait: Wait, dtype: str, tokens: int, hidden: int, call: int) -> float:
    world, rank, gemma = comm.world_size, comm.rank, call % 4 == 0
    routed = [_rows(dtype, tokens, hidden, r, call) for r in range(world)]
    shared = [_rows(dtype, tokens, hidden, r, call + 1000) for r in range(world)] if call % 2 else None
    residual = _rows(dtype, tokens, hidden, 99, call + 2000)
    weight = payload(dtype, hidden, 99, call + 3000)
    _, new_residual = reference.add_all_reduce_rms_norm(routed, shared, residual, weight, EPS, dtype, gemma)
    total = (
        reference.all_reduce(routed, dtype) if shared is None else reference.add_all_reduce(routed, shared, dtype)
    ).reshape(residual.shape)
    r, x, w = (_tensor(t, dtype) for t in (routed[rank], residual, weight))
    s = None if shared is None else _tensor(shared[rank], dtype)
    normed, sums = comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma)
    wait()
    _same(sums, new_residual, "new_residual")
    _same(r, routed[rank], "the input must stay as it was")
    _same(x, residual, "the residual must stay as it was")
    comm.add_all_reduce_rms_norm(r, s, x, w, EPS, gemma, out=(r, x))
    wait()
    _same(r, as_bits(normed), "normed in place")
    _same(x, new_residual, "new_residual in place")
    return _norm_error(total, residual, weight, dtype, gemma, as_bits(normed))


def rs_sconv_ag_norm(comm: Any, wait: Wait) -> float:
    worst = 0.0
    for seed, dtype in enumerate(DTYPES):
        # Heads that fill packets, heads that do not, a shard that is no whole number of words.
        for hidden, heads, block_size in ((64, 2, 4), (60, 6, 4), (13, 1, 3), (1024, 2, 4)):
            for calls in CALLS if hidden < 64 or dtype == "bfloat16" else ("seven tokens",):
                shape = (comm.world_size * hidden, heads, block_size)
                worst = max(worst, _sconv_case(comm, wait, dtype, CALLS[calls], *shape, seed=1000 * seed))
    return worst


def _sconv_case(
    comm: Any,
    wait: Wait,
    dtype: str,
    calls: list[list[tuple[int, int]]],
    hidden: int,
    heads: int,
    block_size: int,
    seed: int,
) -> float:
    world, rank = comm.world_size, comm.rank
    shard = hidden // world
    conv_weight = _rows(dtype, hidden, 4, 99, seed)
    norm_weight = payload(dtype, hidden, 99, seed + 1)
    paged = Paged(dtype, shard, heads, block_size, 160)
    oracle = reference.ShortConv(conv_weight, norm_weight, EPS, dtype, world)
    cw, nw = _tensor(conv_weight[rank * shard : (rank + 1) * shard], dtype), _tensor(norm_weight, dtype)
    worst = 0.0
    for number, call in enumerate(calls):
        tokens = paged.tokens(call)
        index = seed + 10 * number
        routed = [_rows(dtype, len(tokens), hidden, r, index + 2) for r in range(world)]
        shared = [_rows(dtype, len(tokens), hidden, r, index + 3) for r in range(world)] if number % 2 else None
        residual = _rows(dtype, len(tokens), hidden, 99, index + 4)
        _, new_residual = oracle(routed, shared, residual, tokens)
        r, x = _tensor(routed[rank], dtype), _tensor(residual, dtype)
        s = None if shared is None else _tensor(shared[rank], dtype)
        out = (r, x) if number % 2 else None
        weight = None if number % 3 == 2 else nw
        arguments = paged.arguments(tokens)
        normed, sums = comm.rs_sconv_ag_norm(r, s, x, cw, weight, EPS, *arguments, paged.offset, out=out)
        wait()
        _same(sums, new_residual, f"new_residual of call {number}")
        paged.check(oracle, rank, shard)
        if weight is not None:
            worst = max(worst, _sconv_error(new_residual, norm_weight, dtype, as_bits(normed)))
    return worst


def _sconv_error(rows: NDArray[Any], weight: NDArray[Any], dtype: str, normed: NDArray[Any]) -> float:
    wide = reference.to_float32(rows.reshape(-1), dtype).astype(np.float64).reshape(rows.shape)
    exact = wide / np.sqrt((wide * wide).mean(1) + EPS)[:, None]
    exact = exact * reference.to_float32(weight, dtype).astype(np.float64)
    return float(reference.ulps(normed, exact, dtype).max())


def scales_agree(comm: Any, wait: Wait) -> bytes:
    """Of columns that all ranks hold alike; the caller compares ranks."""
    x = _tensor(_rows("float32", 9, 64, comm.rank, 0), "float32")
    x[:, 0], x[:, 16] = 1.0, 1.0
    ones = x.new_ones(16)
    q, k = comm.qk_rms_norm(x[:, :48], ones, ones, 16, 16, EPS)
    wait()
    return bytes(as_bits(q[:, 0]).tobytes() + as_bits(k[:, 0]).tobytes())


def negative_controls(comm: Any, wait: Wait) -> dict[str, bool]:
    """What is wrong with a call, and whether the comparison saw it."""
    seen = {}
    for wrong in ("none", "eps", "weight", "one rank's sums"):
        qkv, q_weight, k_weight = _qk_inputs(comm.world_size, "bfloat16", 3, 96, 32, 0)
        x, qw, kw = (_tensor(t[comm.rank], "bfloat16") for t in (qkv, q_weight, k_weight))
        qw = qw + 0.25 if wrong == "weight" else qw
        x = x * 1.125 if wrong == "one rank's sums" and comm.rank == 0 else x
        q, k = comm.qk_rms_norm(x, qw, kw, 96, 32, 3.0 if wrong == "eps" else EPS)
        wait()
        results = as_bits(q), as_bits(k)
        seen[f"qk: {wrong}"] = max(_qk_error(qkv, q_weight, k_weight, 96, 32, "bfloat16", comm.rank, results)) > ALLOWED
    for wrong in ("none", "gemma", "shared"):
        routed = [_rows("bfloat16", 3, 96, rank, 0) for rank in range(comm.world_size)]
        shared = [_rows("bfloat16", 3, 96, rank, 1) for rank in range(comm.world_size)]
        residual, weight = _rows("bfloat16", 3, 96, 99, 2), payload("bfloat16", 96, 99, 3)
        r, s, x, w = (_tensor(t, "bfloat16") for t in (routed[comm.rank], shared[comm.rank], residual, weight))
        normed, sums = comm.add_all_reduce_rms_norm(r, None if wrong == "shared" else s, x, w, EPS, wrong == "gemma")
        wait()
        total = reference.add_all_reduce(routed, shared, "bfloat16").reshape(residual.shape)
        _, expected = reference.add_all_reduce_rms_norm(routed, shared, residual, weight, EPS, "bfloat16")
        seen[f"norm: {wrong}"] = bool(
            _norm_error(total, residual, weight, "bfloat16", False, as_bits(normed)) > ALLOWED
            or (as_bits(sums) != expected.reshape(-1)).any()
        )
    return seen


def sums_over_sub_groups(comm: Any, wait: Wait) -> float:
    """One case of each kernel in which a work-group has several sub-groups; where building a kernel takes seconds."""
    return max(
        _qk_case(comm, wait, "float32", 3, 1536, 512, 1),
        _qk_case(comm, wait, "bfloat16", 3, 1536, 512, 2),
        _norm_case(comm, wait, "bfloat16", 3, 3072, 3),
        _sconv_case(comm, wait, "bfloat16", CALLS["seven tokens"], 1024 * comm.world_size, 2, 4, seed=0),
    )


def everything(comm: Any, wait: Wait) -> dict[str, float]:
    """All collectives; the worst error of each in units of the last place."""
    add_all_reduce(comm, wait)
    for control, differs in negative_controls(comm, wait).items():
        assert differs != control.endswith("none"), control
    errors = {
        collective.__name__: collective(comm, wait)
        for collective in (qk_rms_norm, add_all_reduce_rms_norm, rs_sconv_ag_norm)
    }
    assert max(errors.values()) <= ALLOWED, errors
    return errors
