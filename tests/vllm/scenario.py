"""One vLLM engine, started once, for everything that a group of tests wants to see of it.

Run as a process of its own (`python -m tests.vllm.scenario JSON RESULT`), so that a hang or a crash of vLLM ends at
its time-out and nothing of it stays behind. `run` starts it and brings back what it wrote.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS = [[7, 3, 11, 200, 5], [400, 1], [9, 9, 9, 9, 9, 9, 9, 2]]
TOKENS = 8


def run(steps: list[list[Any]], folder: Path, *, seconds: float = 300, env: dict[str, str] | None = None, **llm: Any) -> dict[str, Any]:
    """Starts an engine with `llm`'s arguments, has it do `steps` (see `_Engine`), and returns their results by name.

    The result has "log", all output, and "code", the exit code; "results" is missing if the engine died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "result.json", folder / "log.txt"
    result.unlink(missing_ok=True)
    environment = {
        **os.environ,
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
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.vllm.scenario", json.dumps({"steps": steps, "llm": llm}), str(result)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # its workers end with it
        )
        started = time.monotonic()
        try:
            code: int | None = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process.pid)
            process.wait()
    found: dict[str, Any] = {"code": code, "log": log.read_text(), "seconds": time.monotonic() - started}
    if result.exists():
        found["results"] = json.loads(result.read_text())
    return found


def _end(session: int) -> None:
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        pass


class _Engine:
    """The steps of a scenario: each a method, called with the rest of the step's list."""

    def __init__(self, llm: dict[str, Any]) -> None:
        from vllm import LLM

        from tests.vllm import int4_on_cpu

        int4_on_cpu.install()
        self.llm = LLM(
            skip_tokenizer_init=True,
            kv_cache_memory_bytes=64 << 20,
            worker_extension_cls="tests.vllm.worker_extension.TestExtension",
            max_model_len=64,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            **llm,
        )

    def generate(self, prompts: list[list[int]] | None = None, tokens: int = TOKENS) -> list[list[int]]:
        """Greedy tokens of each prompt."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0, detokenize=False, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts or PROMPTS]
        return [list(output.outputs[0].token_ids) for output in self.llm.generate(inputs, sampling, use_tqdm=False)]

    def rpc(self, method: str, *args: Any) -> list[Any]:
        """A method of worker_extension.TestExtension on all ranks; their results."""
        return self.llm.collective_rpc(method, args=args)


def main() -> None:
    request = json.loads(sys.argv[1])
    engine = _Engine(request["llm"])
    results: dict[str, Any] = {}
    for name, method, *args in request["steps"]:
        results[name] = getattr(engine, method)(*args)
    Path(sys.argv[2]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
