"""Intel's own driver accepts what the workspace does, and gets back all that it gave."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.intel.null_hardware import Launch

RANK = "workspace_rank.py"


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, out
    (line,) = [line for line in out.splitlines() if line.startswith("REPORT ")]
    return json.loads(line.removeprefix("REPORT ")), out


def created(out: str, call: str) -> int:
    """How often the loader's leak checker counted a call."""
    found = re.search(rf"{call} = (\d+)", out)
    assert found, out
    return int(found[1])


def test_one_card_without_leaks(launch: Launch, tmp_path: Path) -> None:
    report, out = finish(launch([RANK, "0", "1", str(tmp_path / "meet")], validate=True))
    assert report["drivers"][0]["ipc_memory"]
    assert report["devices"][0]["vendor_id"] == 0x8086
    assert report["links"] == [["own", ""]]
    assert report["addresses"][0] != 0
    assert report["warnings"] == []
    assert created(out, "zeMemAllocDevice") == 1
    assert created(out, "zeMemAllocHost") == 1
    assert created(out, "zeMemFree") == 2
    assert created(out, "zeContextCreate") == created(out, "zeContextDestroy") == 1
    assert created(out, "zeCommandListCreateImmediate") == created(out, "zeCommandListDestroy") == 1
    assert "LEAK" not in out


@pytest.mark.parametrize("mode", ["auto", "socket", "pidfd", "opaque"])
def test_two_cards_open_each_other(launch: Launch, tmp_path: Path, mode: str) -> None:
    processes = [
        launch([RANK, str(rank), "2", str(tmp_path / "meet")], cards=2, validate=True, env={"LAMPORT_IPC": mode})
        for rank in range(2)
    ]
    for rank, (report, out) in enumerate([finish(process) for process in processes]):
        assert len(report["devices"]) == 2
        assert report["devices"][0]["uuid"] != report["devices"][1]["uuid"]
        assert report["peer_access"] == [[True, True], [True, True]]
        assert report["links"][1 - rank][0] == ("socket" if mode == "auto" else mode)
        assert report["warnings"] == []
        assert "LEAK" not in out


def test_more_ranks_than_cards(launch: Launch) -> None:
    code = (
        "from lamport_xpu._level_zero import ZeWorkspace\n"
        "from lamport_xpu.comm.errors import NoDeviceError\n"
        "try:\n    ZeWorkspace(1, 2, 4096, 4096, device=1).allocate('')\n"
        "except NoDeviceError as error:\n    print('REPORT', '\"%s\"' % error)\n"
    )
    report, _ = finish(launch(["-c", code]))
    assert "only 1 are visible" in report
