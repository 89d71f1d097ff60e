#!/usr/bin/env python3
"""Time decode in real vLLM: its own communicator, the adapter, and the adapter with fusions.

Run by the Python that has vLLM and lamport_xpu (after `make test-vllm`: .venv-vllm/bin/python bench/vllm_decode.py).

bench/vllm_decode.py                      tiny random MiniMax-M2 models, on the CPU, all variants side by side
bench/vllm_decode.py --model PATH --tp 4  a model of yours on this machine's devices, one variant after another:
                                          output and total tokens/s at prompt/output 512/128, 512/256, 512/512
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lamport_xpu.bench.vllm_variants import Plan


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", metavar="PATH", help="a checkpoint; by default the two random ones")
    add("--tp", type=int, default=2, metavar="N", help="tensor-parallel size (%(default)s)")
    add("--lengths", default="512/128,512/256,512/512", metavar="LIST", help="prompt/output, for --model (%(default)s)")
    add("--rounds", type=int, default=5, metavar="N", help="rounds of a variant, the median counts (%(default)s)")
    add("--eager", action="store_true", help="without torch.compile; for --model")
    add("--gpu-memory-utilization", type=float, default=0.9, metavar="F", help="vLLM's, for --model (%(default)s)")
    add("--json", type=Path, metavar="FILE")
    add("--logs", type=Path, metavar="FOLDER", help="where vLLM's output goes (a temporary folder)")
    return parser


def main() -> int:
    args = build_parser().parse_args()
    from lamport_xpu.bench import vllm_report
    from lamport_xpu.bench.machine import describe_host

    logs = args.logs or Path(tempfile.mkdtemp(prefix="vllm-decode-"))
    logs.mkdir(parents=True, exist_ok=True)
    rows = []
    try:
        for plan in _plans(args, logs):
            for row in plan.run():
                rows.append(row)
                print(vllm_report.line(row), file=sys.stderr, flush=True)
    except RuntimeError as error:
        print(f"{error}\nits log is in {logs}", file=sys.stderr)
        return 1
    machine: dict[str, Any] = describe_host() | {"tensor_parallel": args.tp} | _versions()
    vllm_report.show(machine, rows)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["same_tokens"] is not False for row in rows) else 1


def _plans(args: argparse.Namespace, logs: Path) -> list[Plan]:
    from lamport_xpu.bench import tiny_models
    from lamport_xpu.bench.vllm_variants import Plan

    memory = args.gpu_memory_utilization
    if args.model:
        lengths = [tuple(map(int, pair.split("/"))) for pair in args.lengths.split(",")]
        return [Plan(Path(args.model).name, args.model, args.tp, args.eager, lengths, args.rounds, False, logs, memory)]
    shapes = {"tiny": tiny_models.Shape(), "minimax width": tiny_models.MINIMAX_WIDTH}
    plans = []
    for name, shape in shapes.items():
        model = tiny_models.write_minimax_m2(logs / name.replace(" ", "-"), shape)
        plans += [
            Plan(name, str(model), args.tp, eager, [(16, 64)], args.rounds, True, logs, memory)
            for eager in (True, False)
        ]
    return plans


def _versions() -> dict[str, Any]:
    from importlib.metadata import version

    import torch
    from vllm.version import __version__

    return {"versions": {"vllm": __version__, "torch": torch.__version__, "lamport-xpu": version("lamport-xpu")}}


if __name__ == "__main__":
    sys.exit(main())
