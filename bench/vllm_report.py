"""Rows of bench/vllm_decode.py as lines and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Row = dict[str, Any]

_STOCK = "stock"


def line(row: Row) -> str:
    """One row, while the others still run."""
    inside = "" if row["collective_ms"] is None else f", {row['collective_ms']:.3f} ms of it in collectives"
    routing = "" if row["routing_us"] is None else f", {row['routing_us']:.2f} us of adapter a call"
    return (
        f"{row['model']}, {row['mode']}, {row['prompt']}/{row['output']}, {row['variant']}: "
        f"{row['decode_ms']:.2f} ms a decode token{inside}{routing}, {row['output_tokens_s']:.1f} output tokens/s"
    )


def show(machine: Row, rows: Sequence[Row]) -> None:
    """One table a model and mode."""
    console = Console(width=120)
    console.print(
        f"[bold]decode in vLLM {machine['versions']['vllm']}[/bold] · TP={machine['tensor_parallel']} · "
        f"{machine['cpu']}, {machine['cores']} cores · {machine['date']}",
        highlight=False,
    )
    for model, mode in dict.fromkeys((row["model"], row["mode"]) for row in rows):
        console.print()
        console.print(_table(f"{model}, {mode}", [r for r in rows if (r["model"], r["mode"]) == (model, mode)]))


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, title=title, title_justify="left", caption_justify="left"
    )
    table.add_column("in/out")
    table.add_column("collectives of")
    headings = (
        "ms/token", "x", "in collectives", "share", "calls", "output tok/s", "total tok/s", "tokens as stock"
    )  # fmt: skip
    for name in headings:
        table.add_column(name, justify="right")
    for routing in (row["routing_us"] for row in rows if row["routing_us"] is not None):
        table.caption = f"the adapter adds {routing:.2f} us to Communicator.all_reduce"
    stock = {(row["prompt"], row["output"]): row["decode_ms"] for row in rows if row["variant"] == _STOCK}
    for row in rows:
        inside, decode = row["collective_ms"], row["decode_ms"]
        base = stock.get((row["prompt"], row["output"]))
        table.add_row(
            f"{row['prompt']}/{row['output']}",
            row["variant"],
            f"{decode:.2f}",
            "-" if base is None else f"{base / decode:.2f}",
            "-" if inside is None else f"{inside:.3f} ms",
            "-" if inside is None else f"{100 * inside / decode:.0f} %",
            "-" if inside is None else f"{row['calls']:.0f}",
            f"{row['output_tokens_s']:.1f}",
            f"{row['total_tokens_s']:.1f}",
            "-" if row["common_tokens"] is None else f"{row['common_tokens']}/{row['output']}",
        )
    return table
