"""The product's kernels under real concurrency, sanitizers, and mutants of the protocol that must be caught."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("stress")

    def compile_with(*flags: str, source: str = "protocol_stress") -> Path:
        binary = folder / (source + "".join(flags))
        if not binary.exists():
            path = ROOT / f"tests/native/{source}.cpp"
            command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", "-Wno-psabi", f"-I{ROOT}", *flags, str(path)]
            subprocess.run([*command, "-o", str(binary)], check=True)
        return binary

    return compile_with


def run(binary: Path, mutant: str, seed: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(binary), mutant, str(seed)], capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_sum_is_right(build, seed: int) -> None:  # type: ignore[no-untyped-def]
    done = run(build(), "none", seed)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing(build, sanitizer: str) -> None:  # type: ignore[no-untyped-def]
    done = run(build(f"-fsanitize={sanitizer}", "-fno-sanitize-recover=undefined"), "none", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("mutant", ["no-restore", "one-generation", "first-out-advances"])
def test_mutants_are_caught(build, mutant: str) -> None:  # type: ignore[no-untyped-def]
    """Negative control: with a protocol step broken, some schedule must give a wrong sum or a wait that runs out."""
    assert any(run(build(), mutant, seed).returncode == 1 for seed in range(1, 9))
