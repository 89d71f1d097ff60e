"""One measured (or refused) result: what the JSON file holds and every table and plot is made from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from lamport_xpu.bench.units import DTYPES

OURS = "lamport"


@dataclass(frozen=True)
class Row:
    """Times are microseconds a call, of the slowest rank; None where nothing was measured.

    `rounds` counts rounds, `calls` every timed call. median, best and p99 are over rounds (stream) or over
    single calls (synced). `wrong` counts wrong elements seen before and while timing.
    """

    backend: str
    variant: str
    dtype: str
    bytes: int
    world: int
    discipline: str
    median_us: float | None = None
    best_us: float | None = None
    p99_us: float | None = None
    rounds: int = 0
    calls: int = 0
    wrong: int | None = None
    ok: bool = False
    error: str | None = None

    @property
    def cell(self) -> tuple[str, str, int, int]:
        """What rows must share to be comparable."""
        return (self.discipline, self.dtype, self.bytes, self.world)

    @property
    def count(self) -> int:
        return self.bytes // DTYPES[self.dtype].itemsize

    @property
    def algbw(self) -> float | None:
        """Bytes of the tensor over time, GB/s."""
        return self.bytes / self.median_us / 1e3 if self.median_us else None

    @property
    def busbw(self) -> float | None:
        """nccl-tests' bus bandwidth, GB/s: comparable with a link's speed at any world size."""
        return self.algbw * 2 * (self.world - 1) / self.world if self.algbw else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Row:
        return cls(**data)


def fastest_peer(rows: Sequence[Row]) -> dict[tuple[str, str, int, int], float]:
    """Median time (us) of the fastest correct backend other than ours, by cell."""
    best: dict[tuple[str, str, int, int], float] = {}
    for row in rows:
        if row.ok and row.median_us and row.backend != OURS:
            best[row.cell] = min(best.get(row.cell, row.median_us), row.median_us)
    return best


def merge(rows: Sequence[Row]) -> Row:
    """Several measurements of the same thing as one: median of the medians, lowest best, highest p99."""
    measured = [row for row in rows if row.median_us is not None]
    errors = [row.error for row in rows if row.error]
    if not measured:
        return rows[0]
    return replace(
        measured[0],
        median_us=median(row.median_us for row in measured if row.median_us is not None),
        best_us=min(row.best_us for row in measured if row.best_us is not None),
        p99_us=max(row.p99_us for row in measured if row.p99_us is not None),
        rounds=sum(row.rounds for row in measured),
        calls=sum(row.calls for row in measured),
        wrong=sum(row.wrong or 0 for row in measured),
        ok=all(row.ok for row in rows),
        error=errors[0] if errors else None,
    )


def merge_by(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> list[Row]:
    """One row for every key, in the order the keys first appear."""
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [merge(group) for group in groups.values()]


def is_sweep(rows: Sequence[Row]) -> bool:
    """Ours ran along with several variants of others."""
    return len({row.variant for row in rows if row.backend == OURS}) > 1


def with_ours_once(rows: Sequence[Row]) -> list[Row]:
    """A sweep's rows with ours, measured again with every variant, merged to one row a cell."""
    if not is_sweep(rows):
        return list(rows)
    once = [replace(row, variant="") if row.backend == OURS else row for row in rows]
    return merge_by(once, lambda row: (row.cell, row.backend, row.variant))
