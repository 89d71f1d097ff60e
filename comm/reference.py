"""Oracles: what each collective must return, bit for bit, in plain NumPy.

bfloat16 has no NumPy dtype of its own; such arrays are passed as uint16 bit patterns with dtype="bfloat16".
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_EMPTY = np.uint32(0x80000000)
_BITS = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}
_NAN = {"float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0}


def bits(x: Array, dtype: str) -> Array:
    """`x` as flat unsigned integers of the dtype's width."""
    return np.ascontiguousarray(x).reshape(-1).view(_BITS[dtype])


def without_empty(pattern: Array) -> Array:
    """Replaces every 32-bit word 0x80000000 by 0, as publishing does. An odd 16-bit tail is padded with +0."""
    padded = np.zeros((pattern.nbytes + 3) // 4, dtype=np.uint32)
    padded.view(pattern.dtype)[: pattern.size] = pattern
    padded[padded == _EMPTY] = 0
    return padded.view(pattern.dtype)[: pattern.size]


def to_float32(pattern: Array, dtype: str) -> NDArray[np.float32]:
    """Bit patterns of `dtype` as float32, exactly."""
    if dtype == "bfloat16":
        return (pattern.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        return pattern.view(dtype).astype(np.float32)


def from_float32(x: NDArray[np.float32], dtype: str) -> Array:
    """float32 rounded once to `dtype` (nearest even), any NaN canonical, as bit patterns."""
    if dtype == "float32":
        pattern = x.view(np.uint32).copy()
    elif dtype == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            pattern = x.astype(np.float16).view(np.uint16)
    else:
        wide = x.view(np.uint32)
        with np.errstate(over="ignore"):
            pattern = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    pattern[np.isnan(x)] = _NAN[dtype]
    return pattern


def all_reduce(inputs: Sequence[Array], dtype: str) -> Array:
    """Sum over ranks: fp32 accumulation in rank order, one rounding, the same bits for every algorithm.

    Args:
        inputs: one array of n elements per rank.
        dtype: "float32", "float16" or "bfloat16" (then arrays hold uint16 bit patterns).

    Returns:
        The n results as bit patterns (uint32 or uint16). A world of one returns its input unchanged.
    """
    patterns = [bits(x, dtype) for x in inputs]
    if len(patterns) == 1:
        return patterns[0].copy()
    total = to_float32(without_empty(patterns[0]), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for pattern in patterns[1:]:
            total = total + to_float32(without_empty(pattern), dtype)
    return without_empty(from_float32(total, dtype))


def add_all_reduce(routed: Sequence[Array], shared: Sequence[Array], dtype: str) -> Array:
    """all_reduce(routed + shared), the addition rounded once to `dtype`; arguments and result as for all_reduce."""
    return all_reduce([_add(r, s, dtype) for r, s in zip(routed, shared, strict=True)], dtype)


def _add(a: Array, b: Array, dtype: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return from_float32(to_float32(bits(a, dtype), dtype) + to_float32(bits(b, dtype), dtype), dtype)


def sum_of_squares(rows: NDArray[np.float32], dtype: str, packet_bytes: int = 64) -> Array:
    """Of each row of [T, n], in the order and precision of csrc/device/row_math.hpp for one item a work-group.

    That is the host: packets of 64 bytes. On other targets the order, and so the last bits, are different. Returned
    in float32, for rows of dtype float32 in float64.
    """
    per_packet = packet_bytes // (4 if dtype == "float32" else 2)
    tokens, count = rows.shape
    real = _real(dtype)
    padded = np.zeros((tokens, -(-count // per_packet) * per_packet), real)
    padded[:, :count] = rows
    sums = np.zeros((tokens, per_packet), real)
    with np.errstate(all="ignore"):
        for packet in np.split(padded, padded.shape[1] // per_packet, axis=1) if count else []:
            sums = sums + packet * packet
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]


def _real(dtype: str) -> type[np.floating[Any]]:
    """What sums and scales are computed in on the host."""
    return np.float64 if dtype == "float32" else np.float32


def rms_scale(sums: Array, full: int, eps: float) -> Array:
    """1 / sqrt(sums / full + eps), every operation rounded to the sums' type; eps is an fp32 number."""
    real = sums.dtype.type
    with np.errstate(all="ignore"):
        return real(1) / np.sqrt(sums / real(full) + real(np.float32(eps)))


def _scaled(x: NDArray[np.float32], scale: Array, weight: Array, dtype: str) -> Array:
    with np.errstate(all="ignore"):
        product = x.astype(scale.dtype) * scale[:, None] * weight.astype(scale.dtype)
        return from_float32(product.astype(np.float32).reshape(-1), dtype).reshape(x.shape)


def qk_rms_norm(
    qkv: Sequence[Array],
    q_weight: Sequence[Array],
    k_weight: Sequence[Array],
    q_size: int,
    kv_size: int,
    eps: float,
    dtype: str,
) -> list[tuple[Array, Array]]:
    """What every rank's qk_rms_norm returns, bit for bit on the host.

    Formula: vLLM, MiniMax Q/K norm. S = sum of x^2, a rank's part rounded to fp32, rank after rank;
    x * rsqrt(S / full + eps) * weight, one rounding.

    Args:
        qkv: one [T, q_size + 2 * kv_size] array of bit patterns (uint32 or uint16) per rank.
        q_weight, k_weight: one array of q_size or kv_size bit patterns per rank.

    Returns:
        (q, k) as bit patterns, per rank.
    """
    world = len(qkv)
    outputs: list[list[Array]] = [[] for _ in range(world)]
    for start, size, weights in ((0, q_size, q_weight), (q_size, kv_size, k_weight)):
        rows = [to_float32(x[:, start : start + size].copy(), dtype) for x in qkv]
        with np.errstate(all="ignore"):
            on_the_wire = [sum_of_squares(r, dtype).astype(np.float32) for r in rows]
            total = functools.reduce(np.add, (sums.astype(_real(dtype)) for sums in on_the_wire))
        scale = rms_scale(total, world * size, eps)
        for output, r, weight in zip(outputs, rows, weights, strict=True):
            output.append(_scaled(r, scale, to_float32(weight, dtype), dtype))
    return [(q, k) for q, k in outputs]


def add_all_reduce_rms_norm(
    routed: Sequence[Array],
    shared: Sequence[Array] | None,
    residual: Array,
    weight: Array,
    eps: float,
    dtype: str,
    gemma: bool = False,
) -> tuple[Array, Array]:
    """(normed, new_residual) of the fused collective, bit for bit on the host.

    Formula: vLLM, fused_add_rms_norm (its fp32 definition in vllm/ir) after an all-reduce; normed is rounded once.

    Args:
        routed, shared: one [T, H] array of bit patterns per rank.
        residual: [T, H]; weight: [H]; bit patterns.
    """
    total = all_reduce(routed, dtype) if shared is None else add_all_reduce(routed, shared, dtype)
    w = to_float32(weight, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        x = (to_float32(total, dtype) + to_float32(bits(residual, dtype), dtype)).reshape(residual.shape)
        if gemma:
            w = _real(dtype)(1) + w.astype(_real(dtype))
    scale = rms_scale(sum_of_squares(x, dtype), residual.shape[1], eps)
    return _scaled(x, scale, w, dtype), from_float32(x.reshape(-1), dtype).reshape(residual.shape)


def ulps(pattern: Array, exact: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """Distance of results from exact values, in units of the last place that `dtype` has there."""
    digits, lowest = {"float32": (23, -149), "float16": (10, -24), "bfloat16": (7, -133)}[dtype]
    exact = np.asarray(exact, np.float64).reshape(-1)
    exponent = np.frexp(np.where(exact == 0, 1e-300, exact))[1] - 1
    unit = np.ldexp(1.0, np.maximum(exponent - digits, lowest))
    return np.abs(to_float32(pattern.reshape(-1), dtype).astype(np.float64) - exact) / unit


class ShortConv:
    """Oracle of rs_sconv_ag_norm, bit for bit on the host, with the state of all calls since its creation.

    Semantics: vLLM, models/inkling (reduce-scatter, insert into the cache, convolution of window 4 with skip, residual,
    all-gather, norm). The state is a dense history per sequence: paging is what the oracle must not know.

    Args:
        conv_weight: [hidden, 4] bit patterns, the ranks' parts one below the other.
        norm_weight: [hidden].
    """

    def __init__(self, conv_weight: Array, norm_weight: Array, eps: float, dtype: str, world: int) -> None:
        self._weight = to_float32(bits(conv_weight, dtype), dtype).reshape(conv_weight.shape)
        self._norm_weight = to_float32(norm_weight, dtype)
        self._eps, self._dtype, self._world = eps, dtype, world
        #: Reduced rows as bit patterns, by (sequence, position).
        self.history: dict[tuple[int, int], Array] = {}

    def __call__(
        self,
        routed: Sequence[Array],
        shared: Sequence[Array] | None,
        residual: Array,
        tokens: Sequence[tuple[int, int] | None],
    ) -> tuple[Array, Array]:
        """(normed, new_residual) as bit patterns.

        Args:
            routed, shared: one [T, hidden] array of bit patterns per rank.
            residual: [T, hidden].
            tokens: (sequence, position) of each token, or None for padding.
        """
        dtype = self._dtype
        parts = [
            without_empty(_add(r, shared[i], dtype) if shared is not None else bits(r, dtype))
            for i, r in enumerate(routed)
        ]
        reduced = (all_reduce(parts, dtype) if len(parts) > 1 else parts[0]).reshape(residual.shape)
        rows = [self._row(reduced[t], bits(residual[t], dtype), token) for t, token in enumerate(tokens)]
        new_residual = np.stack(rows) if rows else residual.copy()
        scale = rms_scale(self._sums(new_residual), residual.shape[1], self._eps)
        x = to_float32(new_residual.reshape(-1), dtype).reshape(residual.shape)
        return _scaled(x, scale, self._norm_weight, dtype), new_residual

    def _row(self, reduced: Array, residual: Array, token: tuple[int, int] | None) -> Array:
        dtype = self._dtype
        if token is None:
            return without_empty(_add(residual, np.zeros_like(residual), dtype))
        sequence, position = token
        self.history[token] = reduced
        current = to_float32(reduced, dtype)
        with np.errstate(all="ignore"):
            conv = np.zeros_like(current)
            for tap in range(4):
                source = position - 3 + tap
                if source >= 0:
                    conv = conv + to_float32(self.history[sequence, source], dtype) * self._weight[:, tap]
            skip = to_float32(from_float32(conv + current, dtype), dtype)
            return without_empty(from_float32(to_float32(residual, dtype) + skip, dtype))

    def _sums(self, rows: Array) -> Array:
        """As sum_of_squares, but every rank's shard begins with a packet of its own."""
        dtype, (tokens, hidden) = self._dtype, rows.shape
        shard = hidden // self._world
        per_packet = 64 // rows.dtype.itemsize
        packets = -(-shard // per_packet)
        padded = np.zeros((tokens, self._world, packets * per_packet), np.float32)
        padded[:, :, :shard] = to_float32(rows.reshape(-1), dtype).reshape(tokens, self._world, shard)
        return sum_of_squares(padded.reshape(tokens, -1), dtype)
