"""Engines of vLLM that differ in their collectives alone, and the rounds that compare them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lamport_xpu.bench import vllm_engine

Row = dict[str, Any]

#: Seconds after which an idle vLLM worker stops spinning, with some to spare.
_SETTLE = 1.5
_START_SECONDS = 900.0
_ROUND_SECONDS = 900.0


@dataclass(frozen=True)
class Variant:
    """`gloo`: on the CPU, vLLM's torch.distributed way in the place of its own shared-memory one."""

    name: str
    env: dict[str, str]
    gloo: bool = False


STOCK = Variant("stock", {"LAMPORT_VLLM": "0"})
GLOO = Variant("stock, Gloo", {"LAMPORT_VLLM": "0"}, gloo=True)
ADAPTER = Variant("adapter", {"LAMPORT_VLLM": "1", "LAMPORT_VLLM_FUSE": "none"})
FUSED = Variant("adapter + fusions", {"LAMPORT_VLLM": "1"})


class Engine:
    """A vLLM engine in a process of its own."""

    def __init__(self, variant: Variant, llm: dict[str, Any], shims: bool, log: Path) -> None:
        self.variant = variant
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=vllm_engine.serve, args=(theirs, variant.env, llm, shims, str(log)))
        self._process.start()
        theirs.close()
        self._answer(_START_SECONDS)
        if variant.gloo:
            self.ask("rpc", "bench_use_gloo")

    def ask(self, *request: Any) -> Any:
        self._pipe.send(request)
        return self._answer(_ROUND_SECONDS)

    def close(self) -> None:
        if self._process.is_alive():
            self._pipe.send(("close",))
        self._process.join(60)
        assert self._process.pid is not None, "it was started"
        with contextlib.suppress(ProcessLookupError):  # which is what it should find
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def _answer(self, seconds: float) -> Any:
        pipe: Connection = self._pipe
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline and (self._process.is_alive() or pipe.poll()):
                if pipe.poll(1):
                    return pipe.recv()
        except EOFError:
            pass
        raise RuntimeError(f"vLLM with {self.variant.name} collectives died or gave no answer within {seconds:g} s")


@dataclass(frozen=True)
class Plan:
    """One model in one mode.

    `side_by_side`: all engines up at once and rounds interleaved, for small models on the CPU, where time inside
    collectives can be taken too; else one engine after another.
    """

    name: str
    model: str
    tp: int
    eager: bool
    lengths: list[tuple[int, ...]]
    rounds: int
    side_by_side: bool
    logs: Path
    gpu_memory_utilization: float

    def run(self) -> Iterator[Row]:
        """A row for each pair of lengths and variant."""
        variants = [STOCK, ADAPTER, FUSED]
        if self.side_by_side and self.eager:
            variants.insert(1, GLOO)  # a compiled graph holds the stock kernel: no swapping there
        if not self.side_by_side:
            for variant in variants:
                yield from self._measure([variant])
            return
        yield from self._measure(variants)

    def _measure(self, variants: list[Variant]) -> Iterator[Row]:
        engines: list[Engine] = []
        try:
            for variant in variants:
                engines.append(Engine(variant, self._llm(), self.side_by_side, self._log(variant)))
            for prompt, output in self.lengths:
                yield from self._compare(engines, prompt, output)
        finally:
            for engine in engines:
                engine.close()

    def _compare(self, engines: list[Engine], prompt: int, output: int) -> Iterator[Row]:
        times: dict[str, list[tuple[float, float]]] = {engine.variant.name: [] for engine in engines}
        tokens: dict[str, list[int]] = {}
        for number in range(self.rounds + 1):
            for engine in engines[number % len(engines) :] + engines[: number % len(engines)]:
                time.sleep(_SETTLE if len(engines) > 1 else 0)
                first, _ = engine.ask("generate", prompt, 1)
                whole, tokens[engine.variant.name] = engine.ask("generate", prompt, output)
                if number:  # the first warms up
                    times[engine.variant.name].append((first, whole))
        reference = tokens[engines[0].variant.name] if len(engines) > 1 else None
        for engine in engines:
            name = engine.variant.name
            decode = sorted((whole - first) / (output - 1) for first, whole in times[name])
            whole = statistics.median(whole for _, whole in times[name])
            routing = self._routing(engine)
            inside = self._inside(engine, prompt, output)
            # Fusing changes the rounding, after which greedy tokens may part.
            exact = engine.variant is not FUSED and reference is not None and self.tp == 2
            yield {
                "model": self.name,
                "mode": "eager" if self.eager else "compiled",
                "variant": name,
                "prompt": prompt,
                "output": output,
                "decode_ms": 1e3 * statistics.median(decode),
                "decode_best_ms": 1e3 * decode[0],
                "output_tokens_s": output / whole,
                "total_tokens_s": (prompt + output) / whole,
                "same_tokens": tokens[name] == reference if exact else None,
                "common_tokens": _common(tokens[name], reference) if reference is not None else None,
                "tokens": tokens[name],
                "rounds": self.rounds,
                "routing_us": routing,
                **inside,
            }

    def _routing(self, engine: Engine) -> float | None:
        """Microseconds that the adapter adds to one all-reduce, mean of the ranks."""
        if not self.side_by_side or engine.variant is not ADAPTER:
            return None  # on a GPU calls return early
        return 1e6 * statistics.mean(engine.ask("rpc", "bench_routing"))

    def _inside(self, engine: Engine, prompt: int, output: int) -> Row:
        """Time and calls inside collectives for a token, mean of the ranks; a run of its own, as this costs time."""
        if not self.side_by_side or (not self.eager and engine.variant in (STOCK, GLOO)):
            return {"collective_ms": None, "calls": None}  # on a GPU calls return early; or none is made from Python
        time.sleep(_SETTLE)
        engine.ask("rpc", "bench_time_collectives")
        engine.ask("generate", prompt, 1)
        engine.ask("rpc", "bench_inside_collectives")
        engine.ask("generate", prompt, output)
        ranks = engine.ask("rpc", "bench_inside_collectives")
        # The prefill is among them: all but one of `output` forwards are decode steps.
        return {
            "collective_ms": 1e3 * statistics.mean(seconds for seconds, _ in ranks) / output,
            "calls": ranks[0][1] / output,
        }

    def _llm(self) -> dict[str, Any]:
        longest = max(prompt + output for prompt, output in self.lengths)
        return {
            "model": self.model,
            "tensor_parallel_size": self.tp,
            "enforce_eager": self.eager,
            "max_model_len": longest + 16,
            **(
                {"max_num_seqs": 16, "max_num_batched_tokens": 128, "kv_cache_memory_bytes": 128 << 20}
                if self.side_by_side
                else {"gpu_memory_utilization": self.gpu_memory_utilization}
            ),
        }

    def _log(self, variant: Variant) -> Path:
        mode = "eager" if self.eager else "compiled"
        return self.logs / f"{self.name}-{mode}-{variant.name}.log".replace(" ", "-").replace(",", "")


def _common(left: list[int], right: list[int]) -> int:
    """How many tokens agree before the first that does not."""
    for count, (a, b) in enumerate(zip(left, right, strict=True)):
        if a != b:
            return count
    return len(left)
