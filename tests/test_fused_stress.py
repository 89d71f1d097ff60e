"""The fused kernels as a GPU would run them, several work-items to a group: sanitizers, and mutants to be caught."""

from __future__ import annotations

import pytest

from tests.test_protocol_stress import build, run  # noqa: F401 - build is a fixture

SOURCE = "fused_stress"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_result_is_right(build, seed: int) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    done = run(build(source=SOURCE), "none", seed)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(build, sanitizer: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    done = run(build(f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined", source=SOURCE), "none", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("mutant", ["no-restore", "one-generation"])
def test_mutants_are_caught(build, mutant: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """Negative control: with a protocol step broken, some schedule must give a wrong result or a wait that runs out."""
    assert any(run(build(source=SOURCE), mutant, seed).returncode == 1 for seed in range(1, 9))
