"""The native class in one process: the caller's own handles, and wrong use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# The loader is opened once a process, so each case is a child.
# `driver`, `device`, `context` are native handles.
PREAMBLE = """
import ctypes, os
from lamport_xpu._level_zero import ZeWorkspace
from lamport_xpu.comm import errors
library = ctypes.CDLL(os.environ["LAMPORT_ZE_LOADER"])
def handle(call, *before):
    one, out = ctypes.c_uint32(1), ctypes.c_void_p()
    middle = [] if call == "zeContextCreate" else [ctypes.byref(one)]
    assert getattr(library, call)(*before, *middle, ctypes.byref(out)) == 0
    return out
library.zeInit(1)
driver = handle("zeDriverGet")
device = handle("zeDeviceGet", driver)
context = handle("zeContextCreate", driver, None)
def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")
"""


def run(host_driver: Path, code: str) -> None:
    env = os.environ | {"LAMPORT_ZE_LOADER": str(host_driver)}
    subprocess.run([sys.executable, "-c", PREAMBLE + code], env=env, check=True, timeout=60)


def test_on_the_callers_context(host_driver: Path) -> None:
    run(
        host_driver,
        """
workspace = ZeWorkspace(0, 1, 4096, 4096, context_handle=context.value, device_handle=device.value)
workspace.allocate("")
assert workspace.addresses[0]
words = (ctypes.c_uint32 * (workspace.total_bytes // 4)).from_address(workspace.addresses[0])
assert set(words[1024:]) == {0x80000000}  # generations armed, behind a header page
assert [word for word in words[:1024] if word] == [workspace.read_cookie(0)]
workspace.free()
workspace.free()
assert workspace.addresses == [0]
assert library.lamport_test_ze_live() == 1  # the caller's context
""",
    )


def test_handles_that_make_no_sense(host_driver: Path) -> None:
    run(
        host_driver,
        """
both = lambda **handles: ZeWorkspace(0, 1, 4096, 4096, **handles).allocate("")
assert "both" in refused(errors.WorkspaceError, lambda: both(context_handle=context.value))
text = refused(errors.WorkspaceError, lambda: both(context_handle=context.value, device_handle=0x1000))
assert "level_zero:gpu" in text
""",
    )


def test_wrong_arguments_and_order(host_driver: Path) -> None:
    run(
        host_driver,
        """
for bad in ((2, 2, 4096, 4096), (-1, 2, 4096, 4096), (0, 9, 4096, 4096), (0, 2, 100, 4096), (0, 2, 4096, 0)):
    refused(errors.WorkspaceError, lambda: ZeWorkspace(*bad))
workspace = ZeWorkspace(0, 2, 4096, 4096)
refused(errors.WorkspaceError, lambda: workspace.read_cookie(0))
handle = workspace.allocate("")
refused(errors.WorkspaceError, lambda: workspace.allocate(""))
refused(errors.WorkspaceError, lambda: workspace.write_cookie(1, 7))  # not open
refused(errors.WorkspaceError, lambda: workspace.read_cookie(2))
peer = ZeWorkspace(1, 2, 4096, 4096, device=1)
theirs = peer.allocate("")
assert "another version" in refused(errors.WorkspaceError, lambda: workspace.open_peer(1, theirs[:-1]))
refused(errors.WorkspaceError, lambda: workspace.open_peer(1, handle))  # own handle
refused(errors.WorkspaceError, lambda: workspace.open_peer(0, theirs))
larger = ZeWorkspace(1, 2, 8192, 8192, device=1)
assert "same arguments" in refused(errors.WorkspaceError, lambda: workspace.open_peer(1, larger.allocate("")))
workspace.open_peer(1, theirs)
refused(errors.WorkspaceError, lambda: workspace.open_peer(1, theirs))  # open already
workspace.write_cookie(1, 7)
assert peer.read_cookie(0) == 7
del workspace, peer, larger
assert library.lamport_test_ze_live() == 1
""",
    )
