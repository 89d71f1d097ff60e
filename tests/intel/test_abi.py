"""Our declarations of the Level Zero ABI against the official header."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.intel.fetch import ROOT
from tests.level_zero_host.driver_build import HERE, REPOSITORY, compiler


def test_every_value_size_offset_and_signature() -> None:
    candidates = (ROOT / "usr/include", Path("/usr/include"))
    include = next((folder for folder in candidates if (folder / "level_zero/ze_api.h").exists()), None)
    if include is None:
        pytest.skip("no level_zero/ze_api.h: `make test-intel` fetches it, or install libze-dev")
    command = [compiler(), "-std=c++17", "-fsyntax-only", f"-I{REPOSITORY}", "-isystem", str(include)]
    subprocess.run([*command, str(HERE / "abi_check.cpp")], check=True, timeout=120)
