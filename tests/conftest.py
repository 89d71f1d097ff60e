from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("lamport-*")}


@pytest.fixture(autouse=True)
def no_segment_left_behind() -> Iterator[None]:
    """Every test must leave /dev/shm as it found it, whatever its ranks went through.

    Another job's segments come and go within milliseconds, while it starts; what stays is a leak.
    """
    before = _segments()
    yield
    deadline = time.monotonic() + 3
    while not _segments() <= before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _segments() <= before


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds tuned on this machine must not change what tests run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    os.environ.pop("LAMPORT_CHECK", None)
