"""Results of the fused collectives: rows, the table, the plot, and what a forward pass saves."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lamport_xpu.bench.fused_cases import CASES, LAYERS
from lamport_xpu.bench.machine import describe_pinning
from lamport_xpu.bench.units import format_us

FUSED, SEPARATE, ALONE, ADDED_FIRST = "fused", "unfused", "all-reduce", "add, fused"
"""On our own collectives; other implementations bear the name of the library that reduces."""


@dataclass(frozen=True)
class FusedRow:
    """Times are microseconds a call, of the slowest rank; None where nothing was measured.

    `implementation`: "fused", "unfused" (our all_reduce and torch), "all-reduce" (the one inside, alone), "add, fused"
    (the partial sums added by torch, the rest fused), the library whose all-reduce stands between torch's operations,
    or "... fused", that library's own fusion. `wrong` counts wrong elements over all ranks.
    """

    op: str
    model: str
    implementation: str
    dtype: str
    tokens: int
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
    def cell(self) -> tuple[str, str, str, int, int, str]:
        return (self.discipline, self.op, self.model, self.tokens, self.world, self.dtype)


@dataclass(frozen=True)
class Saving:
    """What fusing an operation takes off a forward pass of LAYERS layers, in microseconds."""

    op: str
    model: str
    tokens: int
    world: int
    discipline: str
    against: str
    calls: int
    saved_us: float


def savings(rows: Sequence[FusedRow]) -> list[Saving]:
    """Of every cell, against every implementation with separate steps."""
    found = []
    fused = {row.cell: row.median_us for row in rows if row.implementation == FUSED and row.ok}
    for row in rows:
        mine = fused.get(row.cell)
        if mine is None or row.median_us is None or not row.ok or row.implementation in (FUSED, ALONE, ADDED_FIRST):
            continue
        calls = LAYERS * CASES[row.op].calls_per_layer
        found.append(
            Saving(row.op, row.model, row.tokens, row.world, row.discipline, row.implementation, calls,
                   calls * (row.median_us - mine))
        )  # fmt: skip
    return found


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[FusedRow]) -> None:
    """Replaces the file in one step."""
    data = {
        "machine": machine,
        "layers": LAYERS,
        "rows": [asdict(row) for row in rows],
        "savings": [asdict(saving) for saving in savings(rows)],
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(partial, path)


def print_report(console: Console, machine: dict[str, Any], rows: Sequence[FusedRow]) -> None:
    """One table a discipline; a line for every operation, model and number of tokens."""
    console.print(
        f"[bold]fused collectives[/bold] · {machine['world']} ranks · {machine['device']} · {machine['cpu']}, "
        f"{machine['cores']} cores",
        highlight=False,
    )
    console.print(f"pinned: {describe_pinning(machine['pinning'])} · {machine['date']}", style="dim", highlight=False)
    for discipline in dict.fromkeys(row.discipline for row in rows):
        console.print()
        console.print(_table(discipline, [row for row in rows if row.discipline == discipline]), highlight=False)
    console.print(
        "\ntime in us, median of the slowest rank; x: this time / fused; all-reduce: the one inside, alone\n"
        f"saved: us off a forward pass of {LAYERS} layers against unfused on our own all-reduce",
        style="dim",
        highlight=False,
    )
    for row in rows:
        if row.error:
            console.print(f"no result: {row.op} {row.implementation} at {row.tokens} tokens: {row.error}")


def _table(discipline: str, rows: Sequence[FusedRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title=discipline, title_justify="left")
    others = [i for i in dict.fromkeys(r.implementation for r in rows) if i not in (FUSED, ALONE)]
    table.add_column("op")
    table.add_column("model")
    for name in ("type", "tokens", FUSED, ALONE, *(part for other in others for part in (other, "x")), "saved"):
        table.add_column(name, justify="right")
    saved = {(s.op, s.model, s.tokens): s.saved_us for s in savings(rows) if s.against == SEPARATE}
    for cell in dict.fromkeys(row.cell for row in rows):
        times = {row.implementation: row.median_us for row in rows if row.cell == cell and row.ok}
        _, op, model, tokens, _, dtype = cell
        fused = times.get(FUSED)
        line = [op, model, dtype, str(tokens), _us(fused), _us(times.get(ALONE))]
        for other in others:
            time = times.get(other)
            line += [_us(time), f"{time / fused:.2f}" if time and fused else "-"]
        table.add_row(*line, _us(saved.get((op, model, tokens))))
    return table


def _us(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if abs(value) >= 1000 else format_us(value)


def write_plot(path: Path, machine: dict[str, Any], rows: Sequence[FusedRow]) -> None:
    """Latency over tokens, log-log: a panel for every operation and model, a line for every implementation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    rows = [row for row in rows if row.ok and row.median_us]
    rows = [row for row in rows if row.discipline == rows[0].discipline]
    panels = list(dict.fromkeys((row.op, row.model) for row in rows))
    lines = list(dict.fromkeys(row.implementation for row in rows))
    tokens = sorted({row.tokens for row in rows})
    figure, axes = pyplot.subplots(1, len(panels), figsize=(1.5 + 3.4 * len(panels), 3.6), squeeze=False, sharey=True)
    for panel, (op, model) in zip(axes[0], panels, strict=True):
        panel.set_title(f"{op}\n{model}", fontsize=9)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.grid(True, which="major", alpha=0.3)
        panel.set_xticks(tokens)
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        panel.set_xlabel("tokens", fontsize=9)
        for i, line in enumerate(lines):
            points = [(r.tokens, r.median_us) for r in rows if (r.op, r.model, r.implementation) == (op, model, line)]
            if points:
                style: dict[str, dict[str, Any]] = {
                    FUSED: {"color": "black", "linewidth": 2.2},
                    ALONE: {"color": "grey", "linestyle": ":"},
                }
                panel.plot(*zip(*points, strict=True), marker="o", markersize=4, label=line,
                           **style.get(line, {"color": f"C{i % 10}"}))  # fmt: skip
    axes[0][0].set_ylabel("time (us)", fontsize=9)
    handles = {
        text: handle for panel in axes[0] for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.suptitle(f"{rows[0].dtype}, {machine['world']} ranks, {rows[0].discipline}, {machine['cpu']}", fontsize=10)
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
