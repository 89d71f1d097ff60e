"""Building the test driver, and what its tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]

Report = dict[str, Any]
RunRanks = Callable[..., list[Report]]


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not found:
        pytest.skip("no C++ compiler to build the test driver with")
    return found


def build_driver(out: Path, *flags: str) -> Path:
    command = [compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", f"-I{REPOSITORY}", *flags]
    subprocess.run([*command, str(HERE / "host_driver.cpp"), "-o", str(out)], check=True, timeout=120)
    return out
