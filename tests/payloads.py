"""Inputs for collectives: deterministic, different on every call, rank and element, and full of special values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lamport_xpu.comm import reference

DTYPES = ("float32", "float16", "bfloat16")

_SPECIAL = {
    # -0.0, +0.0, NaNs with payloads (quiet, signalling, negative), infinities, denormals, largest finite, one.
    "float32": [0x80000000, 0, 0x7FC12345, 0x7F800001, 0xFFC00007, 0x7F800000, 0xFF800000, 1, 0x807FFFFF,
                0x7F7FFFFF, 0x3F800000],
    "float16": [0x8000, 0, 0x7E55, 0x7C01, 0xFE07, 0x7C00, 0xFC00, 1, 0x83FF, 0x7BFF, 0x3C00],
    "bfloat16": [0x8000, 0, 0x7FC1, 0x7F81, 0xFFC7, 0x7F80, 0xFF80, 1, 0x807F, 0x7F7F, 0x3F80],
}  # fmt: skip


def payload(dtype: str, count: int, rank: int, call: int = 0, special: bool = False) -> NDArray[Any]:
    """`count` elements as bit patterns (uint32 or uint16)."""
    rng = np.random.default_rng([rank, call, count])
    if special:
        width = np.uint32 if dtype == "float32" else np.uint16
        return rng.choice(np.array(_SPECIAL[dtype], dtype=width), count)
    return reference.from_float32((rng.standard_normal(count) * 8).astype(np.float32), dtype)


def as_tensor(pattern: NDArray[Any], dtype: str) -> Any:
    """A torch tensor of `dtype` that shares memory with `pattern`."""
    import torch

    signed = pattern.view(np.int32 if dtype == "float32" else np.int16)
    return torch.from_numpy(signed).view(getattr(torch, dtype))


def as_bits(tensor: Any) -> NDArray[Any]:
    """A torch tensor's bit patterns."""
    import torch

    wide = tensor.dtype == torch.float32
    array: NDArray[Any] = tensor.contiguous().view(torch.int32 if wide else torch.int16).numpy()
    return array.reshape(-1).view(np.uint32 if wide else np.uint16)
