"""Latency over size, log-log, as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lamport_xpu.bench.rows import OURS, Row, with_ours_once
from lamport_xpu.bench.units import format_size


def write_plot(path: Path, machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """One panel for every discipline and data type, one line for every backend and variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, NullLocator

    rows = [row for row in with_ours_once(rows) if row.ok and row.median_us]
    disciplines = list(dict.fromkeys(row.discipline for row in rows))
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    sizes = sorted({row.bytes for row in rows})
    lines = list(dict.fromkeys((row.backend, row.variant) for row in rows))
    colours = {line: f"C{i % 10}" for i, line in enumerate(lines)}
    markers = {line: "osD^vPX"[i // 10 % 7] for i, line in enumerate(lines)}

    shape = max(len(disciplines), 1), max(len(dtypes), 1)
    figure, axes = pyplot.subplots(
        *shape, figsize=(1.5 + 3.6 * shape[1], 1.3 + 2.9 * shape[0]), squeeze=False, sharex=True, sharey=True
    )
    for i, discipline in enumerate(disciplines):
        for j, dtype in enumerate(dtypes):
            panel = axes[i][j]
            panel.set_title(f"{dtype}, {discipline}", fontsize=10)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.grid(True, which="major", alpha=0.3)
            # A tick a measured size, thinned where a sweep has many.
            panel.set_xticks(sizes[:: max(1, len(sizes) // 6)])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: format_size(round(x))))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            panel.tick_params(labelsize=8)
            for line in lines:
                points = sorted(
                    (row.bytes, row.median_us)
                    for row in rows
                    if (row.backend, row.variant, row.discipline, row.dtype) == (*line, discipline, dtype)
                )
                ours = line[0] == OURS
                panel.plot(
                    *zip(*points, strict=True) if points else ((), ()),
                    color="black" if ours else colours[line],
                    marker=markers[line],
                    markersize=4,
                    linewidth=2.2 if ours else 1.2,
                    zorder=3 if ours else 2,
                    label=" ".join(line).strip(),
                )
    for panel in axes[:, 0]:
        panel.set_ylabel("time (us)", fontsize=9)
    for panel in axes[-1]:
        panel.set_xlabel("size", fontsize=9)
    figure.suptitle(f"all-reduce, {machine['world']} ranks, {machine['cpu']}", fontsize=11)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
