"""The model check is worth something only while the model and the header are the same protocol."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def steps(path: str) -> list[str]:
    """The names marked `step: NAME`, in order."""
    return re.findall(r"(?://+|/\*) step: (\w+)", (REPOSITORY / path).read_text())


def test_header_and_model_take_the_same_steps_in_the_same_order() -> None:
    header = steps("csrc/device/lamport.hpp")
    assert header, "the header marks no steps"
    assert header == steps("tests/model/lamport.pml")


def test_every_mutant_exists_in_the_model_and_is_checked() -> None:
    """A misspelt macro would check the unmutated model, and a forgotten one nothing."""
    model = (REPOSITORY / "tests/model/lamport.pml").read_text()
    check = (REPOSITORY / "tests/model/check.py").read_text()
    checked = set(re.findall(r'^    \("([A-Z_]+)", "', check, flags=re.MULTILINE))
    configured = {"LAZY", "SAME_GRID"}
    assert set(re.findall(r"(?:#ifn?def |defined\()([A-Z_]+)", model)) - configured == checked
