"""These tests need a CUDA GPU and say why they do not run. Ranks that share a GPU need MPS: `make test-cuda`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda.gpus import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not() if here else None
    if reason:
        for item in here:
            item.add_marker(pytest.mark.skip(reason=reason))
