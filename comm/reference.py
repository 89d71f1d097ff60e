"""Oracles: what each collective must return, bit for bit, in plain NumPy.

bfloat16 has no NumPy dtype of its own; such arrays are passed as uint16 bit patterns with dtype="bfloat16".
"""

from __future__ import annotations

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
