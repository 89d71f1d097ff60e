"""Results as a person wants them: a table, and a JSON file for everyone else. The plot is in plot.py."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lamport_xpu.bench.machine import describe_pinning
from lamport_xpu.bench.rows import OURS, Row, fastest_peer, is_sweep, with_ours_once
from lamport_xpu.bench.units import format_size, format_us

_TYPE = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
"""nccl-tests' names."""
_DISCIPLINE = {
    "stream": "calls back to back",
    "synced": "a barrier before every call",
}
_HEADINGS: tuple[tuple[str, str, Literal["left", "right"]], ...] = (
    # heading, unit, justification
    ("size", "B", "right"),
    ("count", "", "right"),
    ("type", "", "left"),
    ("redop", "", "left"),
    ("backend", "", "left"),
    ("time", "us", "right"),
    ("algbw", "GB/s", "right"),
    ("busbw", "GB/s", "right"),
    ("#wrong", "", "right"),
    ("ratio", "", "right"),
    ("best", "us", "right"),
    ("p99", "us", "right"),
)
_SWEEP_HEADING: tuple[str, str, Literal["left", "right"]] = ("/ours", "", "right")
_LEGEND = (
    "time    median of the slowest rank; best and p99 over rounds (stream) or single calls (synced)\n"
    "ratio   time of the fastest other library / this time: above 1 is faster"
)
_LEGEND_SWEEP = "\n/ours   this time / lamport's in the same run, which evens out drift between runs"


def print_report(console: Console, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Header, one table a discipline, and what did not run, with the reasons."""
    _print_header(console, machine)
    sweep = is_sweep(rows)
    for discipline in dict.fromkeys(row.discipline for row in rows):
        shown = [row for row in rows if row.discipline == discipline and (row.median_us or row.wrong)]
        if shown:
            console.print()
            console.print(_table(discipline, shown, sweep), highlight=False)
    console.print()
    console.print(_LEGEND + _LEGEND_SWEEP * sweep, style="dim", highlight=False)
    _print_missing(console, rows)


def _print_header(console: Console, machine: dict[str, Any]) -> None:
    line = Text("all-reduce", style="bold")
    line.append(f" · {machine['world']} ranks · {machine['device']} · {machine['cpu']}, {machine['cores']} cores")
    console.print(line, highlight=False)
    versions = machine.get("versions", {})
    console.print(f"pinned: {describe_pinning(machine.get('pinning', {}))}", style="dim", highlight=False)
    console.print(
        " · ".join(dict.fromkeys([f"kernel {machine['kernel']}", *versions.values(), machine["date"]])),
        style="dim",
        highlight=False,
    )


def _table(discipline: str, rows: Sequence[Row], sweep: bool) -> Table:
    fastest = fastest_peer(rows)
    # In a sweep ours runs along with every variant: the yardstick of its run, and one line in the table.
    yardstick = {(row.cell, row.variant): row.median_us for row in rows if row.backend == OURS}
    rows = with_ours_once(rows)
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
        title_justify="left",
        title_style="bold",
    )
    peers = list(dict.fromkeys(row.backend for row in rows if row.backend != OURS))
    table.title = f"{discipline}: {_DISCIPLINE.get(discipline, '')}"
    if sweep:
        table.title += f" · variants of {', '.join(peers)}"
    for name, unit, justify in _HEADINGS + (_SWEEP_HEADING,) * sweep:
        table.add_column(f"{name}\n{f'({unit})' if unit else ''}", justify=justify, no_wrap=name != "backend")
    for cell in dict.fromkeys(row.cell for row in rows):
        head = [str(cell[2]), str(next(r.count for r in rows if r.cell == cell)), _TYPE[cell[1]], "sum"]
        for row in (r for r in rows if r.cell == cell):
            label = _label(row, sweep, peers)
            line = [label, *_figures(row, fastest.get(cell))]
            if sweep:
                reference = yardstick.get((cell, row.variant)) if row.backend != OURS else row.median_us
                line.append(f"{row.median_us / reference:.2f}x" if reference and row.median_us else "-")
            table.add_row(*head, *line, style="bold" if row.backend == OURS else "")
            head = [""] * 4
        table.add_section()
    return table


def _label(row: Row, sweep: bool, peers: Sequence[str]) -> str:
    if not sweep:
        return f"{row.backend} {row.variant}".strip()
    if row.backend == OURS:
        return row.backend
    return row.variant if len(peers) == 1 else f"{row.backend} {row.variant}"


def _figures(row: Row, fastest: float | None) -> list[str | Text]:
    wrong = Text(str(row.wrong), style="bold red" if row.wrong else "")
    if row.median_us is None or row.best_us is None or row.p99_us is None:
        return ["-", "-", "-", wrong, "-", "-", "-"]
    ratio = Text("-")
    if fastest and row.ok:
        value = fastest / row.median_us
        colour = "" if row.backend != OURS else "green" if value >= 1 else "red"
        ratio = Text(f"{value:.{2 if value >= 0.1 else 3}f}x", style=colour)
    times = format_us(row.median_us), format_us(row.best_us), format_us(row.p99_us)
    return [times[0], f"{row.algbw:.2f}", f"{row.busbw:.2f}", wrong, ratio, *times[1:]]


def _print_missing(console: Console, rows: Sequence[Row]) -> None:
    """One line for every backend, reason and set of cells; variants that share all three share the line."""
    failed: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if not row.ok:
            failed.setdefault((row.backend, row.variant, row.error or "not measured"), []).append(row)
    lines: dict[tuple[str, str, str, bool], list[str]] = {}
    for (backend, variant, reason), group in failed.items():
        asked = [row for row in rows if (row.backend, row.variant) == (backend, variant)]
        key = (backend, _where(group, asked), reason, any(row.wrong for row in group))
        lines.setdefault(key, []).append(variant)
    for (backend, where, reason, wrong), variants in lines.items():
        console.print(
            Text.assemble(
                ("WRONG" if wrong else "no result", "bold red" if wrong else "yellow"),
                " ",
                (backend, "bold"),
                f" {' · '.join(variants)}".rstrip(),
                f"{where}: {reason}",
            ),
            highlight=False,
        )


def _where(group: Sequence[Row], everything: Sequence[Row]) -> str:
    """The cells of `group`, leaving out what they share with everything the backend was asked for."""
    parts = []
    if {r.dtype for r in group} != {r.dtype for r in everything}:
        parts.append("/".join(dict.fromkeys(r.dtype for r in group)))
    if {r.bytes for r in group} != {r.bytes for r in everything}:
        parts.append(", ".join(dict.fromkeys(format_size(r.bytes) for r in group)))
    if {r.discipline for r in group} != {r.discipline for r in everything}:
        parts.append("/".join(dict.fromkeys(r.discipline for r in group)))
    return " at " + " ".join(parts) if parts else ""


def write_json(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Replaces the file in one step, so that a reader (or a killed run) never leaves half of one."""
    text = json.dumps({"machine": machine, "rows": [row.to_json() for row in rows]}, indent=1)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text + "\n")
    os.replace(partial, path)


def read_json(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The inverse of write_json."""
    data = json.loads(path.read_text())
    return data["machine"], [Row.from_json(row) for row in data["rows"]]
