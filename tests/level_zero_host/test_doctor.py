"""The doctor against the test driver: what it says when things work, and the first thing it says when not."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DOCTOR = ["-m", "lamport_xpu.comm.doctor"]


def run(
    loader: Path | str, arguments: list[str], env: dict[str, str], prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("LAMPORT_", "ZE_"))}
    command = [*prefix, sys.executable, *DOCTOR, *arguments]
    environment = base | {"LAMPORT_ZE_LOADER": str(loader)} | env
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def diagnose(loader: Path | str, **env: str) -> dict[str, Any]:
    done = run(loader, ["--json"], env)
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    for finding in report["findings"]:
        assert bool(finding["remedy"]) == (finding["status"] != "OK"), finding
    return report


def finding(report: dict[str, Any], name: str) -> dict[str, str]:
    return next(f for f in report["findings"] if f["name"].startswith(name))


@pytest.mark.parametrize("gpus", [2, 4])
def test_all_well(host_driver: Path, gpus: int) -> None:
    report = diagnose(host_driver, LAMPORT_TEST_ZE_DEVICES=str(gpus))
    for name in ("Level Zero loader", "GPU driver", "GPU 0", "P2P access", "GPU memory between ranks"):
        assert finding(report, name)["status"] == "OK"
    assert report["ipc_modes"] == [["own" if a == b else "socket" for b in range(gpus)] for a in range(gpus)]


@pytest.mark.parametrize(
    ("fault", "name", "text", "remedy"),
    [
        ("no_device", "GPUs", "no Intel GPU driver", "--device /dev/dri"),
        ("old_driver", "GPU driver", "cannot share memory", "update"),
        ("p2p_refused", "P2P access", "0->1", "Resizable BAR"),
        ("cookie_lost", "GPU memory between ranks", "did not arrive", "iommu=pt"),
        ("out_of_memory", "GPU memory between ranks", "OUT_OF_DEVICE_MEMORY", "max_bytes"),
        ("same_device", "GPU memory between ranks", "both use", "local rank"),
    ],
)
def test_failure_leads_to_the_verdict(host_driver: Path, fault: str, name: str, text: str, remedy: str) -> None:
    report = diagnose(host_driver, LAMPORT_TEST_ZE_FAULT=fault)
    cause = finding(report, name)
    assert cause["status"] == "FAIL"
    assert text in cause["detail"]
    assert remedy in cause["remedy"]
    verdict = report["findings"][-1]
    assert verdict["name"] == "verdict"
    assert verdict["status"] == "FAIL"
    assert finding(report, "all-reduce on cpu")["status"] == "OK"


def test_no_loader() -> None:
    report = diagnose("/nonexistent/libze_loader.so.1")
    assert finding(report, "Level Zero loader")["status"] == "FAIL"
    assert "libze1" in report["findings"][-1]["remedy"]


def test_mixed_models_and_single_gpu_are_named(host_driver: Path) -> None:
    assert (
        "ZE_AFFINITY_MASK"
        in finding(diagnose(host_driver, LAMPORT_TEST_ZE_FAULT="mixed_devices"), "GPU models")["remedy"]
    )
    assert "only one GPU" in finding(diagnose(host_driver, LAMPORT_TEST_ZE_DEVICES="1"), "GPU count")["detail"]


def test_cpu_only_needs_no_gpu() -> None:
    done = run("/nonexistent/libze_loader.so.1", ["--device", "cpu"], {})
    assert done.returncode == 0
    assert "CPU: this will work" in done.stdout


def test_text_for_people(host_driver: Path) -> None:
    done = run(host_driver, [], {"LAMPORT_TEST_ZE_FAULT": "p2p_refused"})
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "-> " in done.stdout


def test_under_mpirun_rank_0_speaks_for_all(host_driver: Path) -> None:
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpirun is None or importlib.util.find_spec("mpi4py") is None:
        pytest.skip("no mpirun or mpi4py: pip install 'lamport-xpu[mpi]'")
    path = f"{Path(mpirun).parent}{os.pathsep}{os.environ['PATH']}"  # Intel's mpirun looks for its programs there
    done = run(host_driver, ["--json"], {"PATH": path}, prefix=(mpirun, "-n", "2"))
    report = json.loads(done.stdout)
    assert finding(report, "GPU memory between ranks (2 ranks)")["status"] == "OK"
    assert report["ipc_modes"] == [["own", "socket"], ["socket", "own"]]
