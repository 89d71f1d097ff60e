#!/usr/bin/env python3
"""The short table of a session: bench/cuda_summary.py FOLDER reads its JSON files and prints times in microseconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from lamport_xpu.bench.report import read_json
from lamport_xpu.bench.rows import Row


def table(rows: Iterable[Row], baseline: str) -> list[str]:
    """A line a backend, a column a size; in brackets the ratio to `baseline`."""
    timed = [row for row in rows if row.median_us]
    sizes = sorted({row.bytes for row in timed})
    base = {row.bytes: row.median_us for row in timed if row.backend == baseline}
    lines = [f"{'us':<24}" + "".join(f"{size:>16}" for size in sizes)]
    for backend in dict.fromkeys(row.backend for row in timed):
        of = {row.bytes: row for row in timed if row.backend == backend}
        cells = []
        for size in sizes:
            row, reference = of.get(size), base.get(size)
            text = f"{row.median_us:.2f}" if row and row.median_us else "-"
            if row and row.median_us and reference:
                text += f" ({row.median_us / reference:.2f})"
            cells.append(f"{text + ('' if row is None or row.ok else ' WRONG'):>16}")
        lines.append(f"{backend:<24}" + "".join(cells))
    return lines


def main(folder: Path) -> int:
    for path in sorted(folder.glob("floor-*.json")):
        floor = json.loads(path.read_text())
        print(f"{path.stem}: empty kernel {floor['empty_kernel_us']}, store to load {floor['store_to_load_us']}")
    for pattern, baseline in (("variants", "chain"), ("bench", "flashinfer"), ("norm", "flashinfer_norm"),
                              ("symmetric", "lamport")):  # fmt: skip
        for path in sorted(folder.glob(f"{pattern}-*.json")):
            machine, rows = read_json(path)
            gpus = list(machine.get("gpu_of_rank", {}).values())
            print(f"\n{path.stem}  MPS {machine.get('mps')}, GPU of each rank {gpus}")
            print("\n".join(table(rows, baseline)))
            for reason in dict.fromkeys(f"{row.backend}: {row.error}" for row in rows if row.error):
                print(f"  {reason[:150]}")
    for path in sorted(folder.glob("fused-*.json")):
        rows = json.loads(path.read_text())["rows"]
        print(f"\n{path.stem}: us (in brackets: over fused)")
        for cell in dict.fromkeys((r["op"], r["model"], r["tokens"]) for r in rows):
            of = {r["implementation"]: r for r in rows if (r["op"], r["model"], r["tokens"]) == cell}
            fused = of["fused"]["median_us"]
            times = [
                f"{name} {r['median_us']:.2f} ({r['median_us'] / fused:.2f})"
                if r["ok"] and fused
                else f"{name}: {r['error']}"
                for name, r in of.items()
            ]
            print(f"{cell[0]} {cell[1]} {cell[2]}: " + ", ".join(times)[:400])
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
