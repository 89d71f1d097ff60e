"""Sizes, data types and lists of them as typed on a command line, with errors that say what was expected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

import torch


class UsageError(ValueError):
    """What the user asked for cannot be done; the message says why and what can."""


class SizeError(UsageError):
    """A size that cannot be read, or that does not hold a whole number of elements."""


class DTypeError(UsageError):
    """A data type the benchmark does not know."""


@dataclass(frozen=True)
class DType:
    """An element type: torch's, its size in bytes, and the relative error of one rounding to it."""

    name: str
    torch: torch.dtype
    itemsize: int
    unit_roundoff: float

    @property
    def full_name(self) -> str:
        """As the library, NumPy and torch call it: float32, float16, bfloat16."""
        return str(self.torch).removeprefix("torch.")


FP32 = DType("fp32", torch.float32, 4, 2.0**-24)
FP16 = DType("fp16", torch.float16, 2, 2.0**-11)
BF16 = DType("bf16", torch.bfloat16, 2, 2.0**-8)
DTYPES = {d.name: d for d in (FP32, FP16, BF16)}

# K, M, G alone are binary, as in nccl-tests.
_FACTORS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMG", start=1):
    _FACTORS |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes in "6144", "6KiB", "1M" (= 1MiB) or "1.5 MiB"."""
    match = _SIZE.fullmatch(text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise SizeError(f"size {text!r}: expected a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB")
    size = Fraction(match[1]) * factor
    if size.denominator != 1 or size <= 0:
        raise SizeError(f"size {text!r}: {float(size):g} bytes is not a positive whole number")
    return int(size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, in the order given, each once."""
    return tuple(dict.fromkeys(parse_size(part) for part in text.split(",")))


def parse_dtypes(text: str) -> tuple[DType, ...]:
    """Data types in the order given, each once."""
    names = dict.fromkeys(part.strip() for part in text.split(","))
    for name in names:
        if name not in DTYPES:
            raise DTypeError(f"dtype {name!r}: expected one or more of {', '.join(DTYPES)}")
    return tuple(DTYPES[name] for name in names)


def element_count(size: int, dtype: DType) -> int:
    """Elements of `dtype` in `size` bytes."""
    count, rest = divmod(size, dtype.itemsize)
    if rest:
        raise SizeError(f"size {size}: not a multiple of the {dtype.itemsize} bytes of one {dtype.name} element")
    return count


def format_size(size: int) -> str:
    """The shortest exact spelling: 8 B, 6 KiB, 1 MiB."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B"


def format_us(value: float) -> str:
    """Microseconds to three figures or more, never in exponent form: 0.318, 4.20, 243.1, 9630."""
    decimals = 3 if value < 1 else 2 if value < 100 else 1 if value < 1000 else 0
    return f"{value:.{decimals}f}"
