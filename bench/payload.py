"""What is reduced: inputs to check results with, and inputs that can be reduced in place again and again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from lamport_xpu.bench.units import DType

_CHUNK = 1 << 20
"""Elements checked at a time: bounds the memory of a check whatever the tensor's size."""


class SteadyPayload:
    """Inputs for timing: not all zero, and finite however often they are reduced in place.

    An in-place sum feeds on its own result: W equal inputs grow W-fold a call and overflow fp16 within 16
    calls at W = 2. So the ranks' inputs cancel: rank r holds (2r - (W-1)) * pattern, the sum is exactly 0
    in any order of summation and any of the types (all partial sums are whole numbers below 256), and stays
    0 for the rest of a batch. The first call of a batch, and every call of the synced discipline, sees
    these values; the later calls of a batch see zeros. That costs no backend more or less: none looks at
    values, and a zero is not our "not yet" word (0x80000000). Two patterns alternate, so a late read of the
    previous round's data does not cancel and shows up.
    """

    def __init__(self, count: int, dtype: DType, rank: int, world_size: int, device: str) -> None:
        assert world_size <= 8, "patterns below stay exact in bf16 up to 8 ranks"
        pattern = torch.arange(count, dtype=torch.int32, device=device).remainder_(13).add_(1).to(dtype.torch)
        weight = 2 * rank - (world_size - 1)
        self._templates = (pattern * weight, pattern.flip(0) * -weight)
        self._turn = 0

    def fill(self, buffer: torch.Tensor) -> None:
        """Write the next input, as a producer would just before the call."""
        buffer.copy_(self._templates[self._turn])
        self._turn ^= 1

    @staticmethod
    def wrong(buffer: torch.Tensor) -> int:
        """Elements of a reduced buffer that are not the exact sum, 0."""
        return int(torch.count_nonzero(buffer))


def random_inputs(rank: int, count: int, dtype: DType) -> Iterator[tuple[int, torch.Tensor]]:
    """(offset, values) of a rank's random input in chunks; every rank can compute every other's."""
    for chunk, offset in enumerate(range(0, count, _CHUNK)):
        values = np.random.default_rng((20, rank, chunk)).standard_normal(min(_CHUNK, count - offset), np.float32)
        yield offset, torch.from_numpy(values).to(dtype.torch)


def fill_random(buffer: torch.Tensor, rank: int, dtype: DType) -> None:
    """Write this rank's random input."""
    for offset, values in random_inputs(rank, buffer.numel(), dtype):
        buffer[offset : offset + values.numel()].copy_(values)


def wrong_within_rounding(result: torch.Tensor, world_size: int, dtype: DType) -> int:
    """Elements of the reduced random inputs outside what any order of summation may give.

    With every partial sum rounded to the type, the error is at most gamma * sum |x|, gamma = n*u / (1 -
    n*u) for n = W - 1 additions (Higham, section 4.2).
    """
    nu = (world_size - 1) * dtype.unit_roundoff
    gamma = nu / (1 - nu)
    wrong = 0
    for chunks in zip(*(random_inputs(r, result.numel(), dtype) for r in range(world_size)), strict=True):
        offset = chunks[0][0]
        inputs = [values.double() for _, values in chunks]
        got = result[offset : offset + inputs[0].numel()].cpu().double()
        exact, magnitude = sum(inputs), sum(x.abs() for x in inputs)
        # Written so that NaN counts as wrong.
        wrong += int((~((got - exact).abs() <= gamma * magnitude)).sum())
    return wrong


def wrong_bits(result: torch.Tensor, world_size: int, dtype: DType) -> int:
    """Elements of the reduced random inputs that differ in any bit from the rank-order oracle."""
    from lamport_xpu.comm import reference

    wrong = 0
    for chunks in zip(*(random_inputs(r, result.numel(), dtype) for r in range(world_size)), strict=True):
        offset = chunks[0][0]
        expected = reference.all_reduce([as_words(values) for _, values in chunks], dtype.full_name)
        got = as_words(result[offset : offset + expected.size].cpu()).view(expected.dtype)
        wrong += int((got != expected).sum())
    return wrong


def as_words(values: torch.Tensor) -> np.ndarray:
    """A NumPy view; NumPy has no bfloat16, which goes as uint16 bit patterns."""
    return (values.view(torch.uint16) if values.dtype == torch.bfloat16 else values).numpy()
