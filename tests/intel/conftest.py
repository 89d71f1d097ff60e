from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.intel import fetch, null_hardware
from tests.intel.null_hardware import Launch


@pytest.fixture(scope="session")
def launch() -> Launch:
    """launch(argv, cards=1, validate=False, env) -> a process on Intel's driver with null hardware."""
    if not fetch.STAMP.exists():
        pytest.skip("Intel's driver has not been fetched: `make test-intel` does it")

    def start(
        argv: list[str], *, cards: int = 1, validate: bool = False, env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            null_hardware.command([sys.executable, *argv]),
            env=null_hardware.environment(cards, validate) | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=os.fspath(Path(__file__).parent),
        )

    return start
