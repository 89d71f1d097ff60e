"""Runs ranks as processes against the test driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.level_zero_host.driver_build import REPOSITORY, Report, RunRanks, build_driver


@pytest.fixture(scope="session")
def host_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "libhost_driver.so")


@pytest.fixture(scope="session")
def old_loader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver") / "libold_loader.so", "-DLAMPORT_TEST_OLD_LOADER")


@pytest.fixture
def run_ranks(host_driver: Path, tmp_path: Path) -> RunRanks:
    """run_ranks(world_size, env, per_rank={rank: env}, absent={ranks not started}) -> reports by rank.

    A rank that was killed on purpose reports only its exit status.
    """

    def run(
        world_size: int,
        env: dict[str, str] | None = None,
        *,
        per_rank: dict[int, dict[str, str]] | None = None,
        absent: tuple[int, ...] = (),
        limit: float = 60,
        script: str = "rank_main",
    ) -> list[Report]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("LAMPORT_", "ZE_"))}
        base |= {"LAMPORT_ZE_LOADER": str(host_driver), "LAMPORT_TEST_ZE_DEVICES": str(world_size)} | (env or {})
        processes = {
            rank: subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"tests.level_zero_host.{script}",
                    str(rank),
                    str(world_size),
                    str(tmp_path / "meet"),
                ],
                cwd=REPOSITORY,
                env=base | (per_rank or {}).get(rank, {}),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
            if rank not in absent
        }
        reports: list[Report] = [{} for _ in range(world_size)]
        try:
            for rank, process in processes.items():
                out, _ = process.communicate(timeout=limit)
                reports[rank] = json.loads(out) if out.strip() else {"killed": process.returncode}
        finally:
            for process in processes.values():
                process.kill()
        return reports

    return run
