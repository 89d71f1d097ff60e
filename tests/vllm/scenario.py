"""One vLLM engine, started once, for everything that a group of tests wants to see of it.

An engine runs in processes of its own, so that a hang or a crash of vLLM ends at its time-out and nothing of it stays
behind. Importing vLLM takes longer than all the rest, three times over at TP=2: `run` therefore forks the engine from
this process, which has imported it once, and the engine forks its workers. `fresh=True` starts it as a user would: a
new interpreter, and workers by spawn.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PROMPTS = [[7, 3, 11, 200, 5], [400, 1], [9, 9, 9, 9, 9, 9, 9, 2]]
TOKENS = 8


def run(
    steps: list[list[Any]],
    folder: Path,
    *,
    seconds: float = 300,
    env: dict[str, str] | None = None,
    fresh: bool = False,
    **llm: Any,
) -> dict[str, Any]:
    """Starts an engine with `llm`'s arguments, has it do `steps` (see `_Engine`), and returns what they gave.

    Args:
        steps: [name of the result, method of _Engine, its arguments...].
        folder: for caches, log and result; of this run alone.
        seconds: after which everything is killed.
        env: environment variables.
        fresh: see above.

    Returns:
        "results" by name, missing if the engine died; "log", all output; "code", the exit code, None after a time-out;
        "seconds".
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "result.json", folder / "log.txt"
    result.unlink(missing_ok=True)
    environment = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(rank % 2) for rank in range(llm["tensor_parallel_size"])),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        **(env or {}),
    }
    request = json.dumps({"steps": steps, "llm": llm, "fork": not fresh})
    started = time.monotonic()
    with log.open("w") as output:
        start = _spawn if fresh else _fork
        code = _wait(start(request, str(result), output.fileno(), environment), seconds)
    found: dict[str, Any] = {"code": code, "log": log.read_text(), "seconds": time.monotonic() - started}
    if result.exists():
        found["results"] = json.loads(result.read_text())
    return found


def _spawn(request: str, result: str, output: int, environment: dict[str, str]) -> int:
    command = [sys.executable, "-m", "tests.vllm.scenario", request, result]
    return subprocess.Popen(
        command, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
    ).pid


def _fork(request: str, result: str, output: int, environment: dict[str, str]) -> int:
    import vllm  # noqa: F401 - before the fork, so that it happens once

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            _redirect(output)
            os.environ.update(environment)
            main(request, result)
            code = 0
        except BaseException:  # noqa: BLE001 - into the log, and never back into pytest
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _redirect(output: int) -> None:
    """Output of this process, pytest's stand-ins for the streams included, to a file."""
    import logging

    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    for handler in logging.getLogger("vllm").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stdout)


def _wait(pid: int, seconds: float) -> int | None:
    """Exit code of a session's leader, or None after `seconds`; ends the session."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


class _Engine:
    """The steps of a scenario: each a method, called with the rest of the step's list."""

    def __init__(self, llm: dict[str, Any], fork: bool) -> None:
        import multiprocessing

        import torch
        from vllm import LLM
        from vllm.v1.executor import multiproc_executor

        from lamport_xpu.bench import int4_on_cpu

        if fork:
            multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")
            if llm.get("enforce_eager"):
                torch._dynamo.config.disable = True  # vLLM compiles a helper of its sampler even so: 20 s
        int4_on_cpu.install()
        self.llm = LLM(
            skip_tokenizer_init=True,
            kv_cache_memory_bytes=64 << 20,
            worker_extension_cls="tests.vllm.worker_extension.TestExtension",
            **{"max_model_len": 512, "max_num_seqs": 64, "max_num_batched_tokens": 64, **llm},
        )

    def generate(self, tokens: int = TOKENS, prompts: list[list[int]] | None = None) -> list[list[list[float]]]:
        """Of each prompt, of each token: the greedy token and its log probability, in full precision."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0, logprobs=0, detokenize=False, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts or PROMPTS]
        outputs = self.llm.generate(inputs, sampling, use_tqdm=False)
        return [
            [[float(token), logprobs[token].logprob] for token, logprobs in zip(o.token_ids, o.logprobs, strict=True)]
            for o in (output.outputs[0] for output in outputs)
        ]

    def rpc(self, method: str, *args: Any) -> list[Any]:
        """A method of worker_extension.TestExtension on all ranks; their results."""
        return self.llm.collective_rpc(method, args=args)

    def kill_during_generate(self, rank: int, after: float) -> None:
        """Kills a worker in the middle of a generation, which must then not return."""
        pid = self.rpc("test_pid")[rank]
        timer = threading.Timer(after, os.kill, (pid, signal.SIGKILL))
        timer.start()
        self.generate(tokens=500)
        timer.cancel()


def main(request_text: str, result: str) -> None:
    request = json.loads(request_text)
    engine = _Engine(request["llm"], request["fork"])
    results: dict[str, Any] = {}
    for name, method, *args in request["steps"]:
        started = time.monotonic()
        results[name] = getattr(engine, method)(*args)
        print(f"step {name}: {time.monotonic() - started:.1f} s")
    Path(result).write_text(json.dumps(results))
    engine.llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
