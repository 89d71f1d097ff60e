"""Bring-up and teardown through every exchange mode and every fault, with a process a rank."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.level_zero_host.driver_build import Report, RunRanks

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the seccomp filter has x86-64 call numbers")


def modes(report: Report) -> set[str]:
    return {mode for mode, _ in report["links"]} - {"own"}


def reasons(report: Report) -> str:
    return " ".join(reason for _, reason in report["links"])


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(
    ("layout", "wanted", "used"),
    [
        ("fd", "auto", "socket"),
        ("fd", "pidfd", "pidfd"),
        ("pid", "auto", "socket"),
        ("pid", "pidfd", "pidfd"),
        ("pid", "opaque", "opaque"),
        ("none", "auto", "opaque"),
    ],
)
def test_mode_maps_every_peer(run_ranks: RunRanks, world_size: int, layout: str, wanted: str, used: str) -> None:
    reports = run_ranks(world_size, {"LAMPORT_TEST_ZE_LAYOUT": layout, "LAMPORT_IPC": wanted})
    for rank, report in enumerate(reports):
        assert report["error"] is None, report
        assert modes(report) == {used}
        assert "cookie read back" in reasons(report)
        assert ("forced by LAMPORT_IPC" in reasons(report)) == (wanted != "auto")
        assert report["live"] == 0
        assert report["leaked_files"] == 0
        assert report["warnings"] == []
        assert report["status"] != 0
        owners = [report["everyone"][peer][peer] for peer in range(world_size)]
        assert all(report["addresses"][peer] != owners[peer] for peer in range(world_size) if peer != rank)


@pytest.mark.parametrize(
    ("layout", "wanted", "error", "remedy"),
    [
        ("fd", "opaque", "HandleExchangeError", "LAMPORT_IPC=socket"),
        ("none", "socket", "HandleExchangeError", "LAMPORT_IPC=opaque"),
        ("none", "pidfd", "HandleExchangeError", "LAMPORT_IPC=opaque"),
        ("fd", "carrier-pigeon", "WorkspaceError", "Use socket, pidfd, opaque or auto"),
    ],
)
def test_mode_that_cannot_work(run_ranks: RunRanks, layout: str, wanted: str, error: str, remedy: str) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_ZE_LAYOUT": layout, "LAMPORT_IPC": wanted}):
        assert report["error"] == error
        assert remedy in report["text"]


@needs_x86
@pytest.mark.parametrize("layout", ["fd", "pid"])
def test_socket_needs_no_ptrace(run_ranks: RunRanks, layout: str) -> None:
    env = {"LAMPORT_TEST_DENY": "pidfd_getfd", "LAMPORT_TEST_ZE_LAYOUT": layout}
    for report in run_ranks(2, env):
        assert report["error"] is None, report
        assert modes(report) == {"socket"}


@needs_x86
def test_pidfd_denied_names_the_remedy(run_ranks: RunRanks) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_DENY": "pidfd_getfd", "LAMPORT_IPC": "pidfd"}):
        assert report["error"] == "HandleExchangeError"
        for part in ("Operation not permitted", "ptrace_scope", "SYS_PTRACE", "LAMPORT_IPC=socket"):
            assert part in report["text"]


@needs_x86
@pytest.mark.parametrize("call", ["connect", "socket"])
def test_without_sockets_pidfd_is_chosen_and_the_reason_kept(run_ranks: RunRanks, call: str) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_DENY": call}):
        assert report["error"] is None, report
        assert modes(report) == {"pidfd"}
        assert "after mode socket:" in reasons(report)
        assert report["live"] == 0
        assert report["leaked_files"] == 0


@needs_x86
@pytest.mark.parametrize(("layout", "error"), [("fd", "HandleExchangeError"), ("pid", "HandleOpenError")])
def test_every_mode_denied(run_ranks: RunRanks, layout: str, error: str) -> None:
    env = {"LAMPORT_TEST_DENY": "connect,pidfd_getfd", "LAMPORT_TEST_ZE_LAYOUT": layout}
    for report in run_ranks(2, env):
        assert report["error"] == error
        assert "mode socket" in report["text"]
        assert "mode pidfd" in report["text"]


FAULTS = [
    ("no_device", "NoDeviceError", "--device /dev/dri"),
    ("old_driver", "DriverTooOldError", "Update the package"),
    ("out_of_memory", "OutOfDeviceMemoryError", "Lower max_bytes"),
    ("p2p_refused", "PeerAccessError", "Resizable BAR"),
    ("open_fails", "HandleOpenError", "Update the GPU driver"),
    ("open_null", "HandleOpenError", "null address"),
    ("wrong_memory", "CookieError", "does not read back"),
    ("cookie_lost", "CookieError", "writes do not reach"),
    ("open_hangs", "DriverTimeout", "did not return"),
    ("copy_hangs", "DriverTimeout", "did not finish"),
]


@pytest.mark.parametrize(("fault", "error", "text"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
@pytest.mark.parametrize("world_size", [2, 3])
def test_fault_on_one_rank_is_every_ranks_verdict(
    run_ranks: RunRanks, world_size: int, fault: str, error: str, text: str
) -> None:
    reports = run_ranks(world_size, per_rank={1: {"LAMPORT_TEST_ZE_FAULT": fault}})
    for report in reports:
        assert report["error"] == error, report
        assert text in report["text"]
        assert report["seconds"] < 20
    assert all("rank 1" in reports[rank]["text"] for rank in range(world_size) if rank != 1)


@pytest.mark.parametrize(("fault", "text"), [("same_device", "both use"), ("mixed_devices", "two different models")])
def test_topology(run_ranks: RunRanks, fault: str, text: str) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_ZE_FAULT": fault}):
        assert report["error"] == "TopologyError"
        assert text in report["text"]


def test_hidden_peer_is_judged_by_its_cookie(run_ranks: RunRanks) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_ZE_FAULT": "hidden_peers"}):
        assert report["error"] is None, report
        assert "P2P property not asked" in reasons(report)


def test_more_ranks_than_devices(run_ranks: RunRanks) -> None:
    for report in run_ranks(3, {"LAMPORT_TEST_ZE_DEVICES": "2"}):
        assert report["error"] == "NoDeviceError"
        assert "start fewer ranks" in report["text"]


def test_no_loader(run_ranks: RunRanks) -> None:
    for report in run_ranks(2, {"LAMPORT_ZE_LOADER": "/nonexistent/libze_loader.so.1"}):
        assert report["error"] == "LoaderNotFoundError"
        assert "libze1" in report["text"]


def test_old_loader(run_ranks: RunRanks, old_loader: Path) -> None:
    for report in run_ranks(2, {"LAMPORT_ZE_LOADER": str(old_loader)}):
        assert report["error"] == "DriverTooOldError"
        assert "zeCommandListHostSynchronize" in report["text"]


def test_close_that_hangs_is_left_behind(run_ranks: RunRanks) -> None:
    reports = run_ranks(3, {"LAMPORT_TEST_TIMEOUT": "4"}, per_rank={1: {"LAMPORT_TEST_ZE_FAULT": "close_hangs"}})
    for rank, report in enumerate(reports):
        assert report["error"] is None, report
        assert report["close_seconds"] < 4
        assert (report["live"] == 0) == (rank != 1)
    (warning,) = reports[1]["warnings"]
    assert "zeMemCloseIpcHandle for rank 0 did not return" in warning
    assert reports[0]["warnings"] == []


def test_descriptor_that_the_driver_keeps_is_closed(run_ranks: RunRanks) -> None:
    for report in run_ranks(2, {"LAMPORT_TEST_ZE_FAULT": "keeps_fd"}):
        assert report["error"] is None, report
        assert report["leaked_files"] == 0


@pytest.mark.parametrize("absent", [0, 1])
def test_peer_that_never_arrives_is_named(run_ranks: RunRanks, absent: int) -> None:
    reports = run_ranks(2, {"LAMPORT_TEST_TIMEOUT": "2"}, absent=(absent,))
    report = reports[1 - absent]
    assert report["error"] == "BootstrapTimeout"
    assert str(absent) in report["text"]
    assert report["seconds"] < 10


def test_peer_that_dies_in_bring_up_is_named(run_ranks: RunRanks) -> None:
    reports = run_ranks(2, {"LAMPORT_TEST_TIMEOUT": "3"}, per_rank={1: {"LAMPORT_TEST_DIE": "bootstrap"}})
    assert reports[0]["error"] == "BootstrapTimeout"
    assert "rank 1" in reports[0]["text"]
    assert reports[1] == {"killed": -9}


def test_teardown_after_a_peer_died(run_ranks: RunRanks) -> None:
    reports = run_ranks(3, {"LAMPORT_TEST_PEER_DIES": "1"}, per_rank={1: {"LAMPORT_TEST_DIE": "up"}})
    for rank in (0, 2):
        assert reports[rank]["error"] is None
        assert reports[rank]["live"] == 0
    assert reports[1] == {"killed": -9}
