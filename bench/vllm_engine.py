"""The process that holds one vLLM engine, and what runs in the engine's workers for the benchmark."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_ROUTING_ROUNDS = 50
_ROUTING_CALLS = 200


def serve(pipe: Connection, env: dict[str, str], llm: dict[str, Any], shims: bool, log: str) -> None:
    """Starts an engine, says so, and answers ("generate", prompt length, tokens), ("rpc", method) and ("close",).

    Args:
        env: environment variables, in place before vLLM is imported.
        llm: arguments of vllm.LLM.
        shims: the CPU shims for INT4 models; one core for each rank.
        log: file for all output.

    The process leads a group of its own, in which all of vLLM's are.
    """
    os.setpgrp()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(env)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if shims:
        cores = sorted(os.sched_getaffinity(0))
        binding = "|".join(str(cores[rank % len(cores)]) for rank in range(llm["tensor_parallel_size"]))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", binding)
        os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ["BENCH_INT4_ON_CPU"] = "1"
    from vllm import LLM, SamplingParams

    engine = LLM(skip_tokenizer_init=True, worker_extension_cls=f"{__name__}.TimingExtension", seed=0, **llm)
    pipe.send("ready")
    while (request := pipe.recv())[0] != "close":
        if request[0] == "rpc":
            pipe.send(engine.collective_rpc(request[1]))
            continue
        _, length, tokens = request
        sampling = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True)
        prompt = {"prompt_token_ids": [(7 * i) % 499 + 1 for i in range(length)]}
        engine.reset_prefix_cache()
        start = time.perf_counter()
        (result,) = engine.generate([prompt], sampling, use_tqdm=False)
        pipe.send((time.perf_counter() - start, list(result.outputs[0].token_ids)))
    # At the end of a multiprocessing child nothing else would.
    engine.llm_engine.engine_core.shutdown()


class TimingExtension:
    """Mixed into vLLM's workers."""

    def bench_use_gloo(self) -> None:
        """The stock CPU communicator without its shared-memory kernels."""
        import torch.distributed

        _communicator().dist_module = torch.distributed

    def bench_time_collectives(self) -> None:
        """From now on, takes the time in collectives called from Python; for the CPU, where calls block."""
        communicator = _communicator()
        self._inside = _Inside()
        for name in ("all_reduce", "add_all_reduce", "add_all_reduce_rms_norm", "qk_rms_norm"):
            if hasattr(communicator, name):
                setattr(communicator, name, self._inside.timed(getattr(communicator, name)))

    def bench_inside_collectives(self) -> tuple[float, int]:
        """Seconds and calls since the last question."""
        return self._inside.take()

    def bench_routing(self) -> float:
        """Seconds that the adapter adds to Communicator.all_reduce of one token's hidden state: medians of many rounds
        of each, in turn. All ranks call it alike, before `bench_time_collectives`.
        """
        import torch

        config = self.model_config  # type: ignore[attr-defined]
        x = torch.zeros(1, config.get_hidden_size(), dtype=config.dtype)
        communicator = _communicator()
        ways = (communicator.all_reduce, communicator.lamport.all_reduce)
        times: tuple[list[float], ...] = ([], [])
        for _ in range(_ROUTING_ROUNDS):
            for way, taken in zip(ways, times, strict=True):
                start = time.perf_counter()
                for _ in range(_ROUTING_CALLS):
                    way(x)
                taken.append((time.perf_counter() - start) / _ROUTING_CALLS)
        adapter, bare = map(statistics.median, times)
        return adapter - bare


class _Inside:
    def __init__(self) -> None:
        self._seconds, self._calls, self._depth = 0.0, 0, 0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self._depth += 1
            start = time.perf_counter()
            try:
                return function(*args)
            finally:
                self._depth -= 1
                if self._depth == 0:  # one collective may fall back to another
                    self._seconds += time.perf_counter() - start
                    self._calls += 1

        return call

    def take(self) -> tuple[float, int]:
        taken = (self._seconds, self._calls)
        self._seconds, self._calls = 0.0, 0
        return taken


def _communicator() -> Any:
    from vllm.distributed.parallel_state import get_tp_group

    return get_tp_group().device_communicator


if os.environ.get("BENCH_INT4_ON_CPU") == "1":  # a worker, which imports this module before it builds the model
    from lamport_xpu.bench import int4_on_cpu

    int4_on_cpu.install()
