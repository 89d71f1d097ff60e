"""One rank of a test: brings the workspace up, takes it down, and prints what happened as one line of JSON.

    python rank_main.py RANK WORLD_SIZE SOCKET_PATH

LAMPORT_TEST_DENY lists system calls to refuse with EPERM once the ranks know each other, as a container's
seccomp profile does. LAMPORT_TEST_DIE names a point to be killed at: bootstrap, or up.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import time

from lamport_xpu.comm.bootstrap import LocalBootstrap
from lamport_xpu.comm.errors import LamportError
from lamport_xpu.comm.level_zero import LevelZeroWorkspace
from lamport_xpu.comm.policy import ChunkSizes
from lamport_xpu.comm.workspace import Workspace

CHUNKS = ChunkSizes(slot_bytes=4096, slice_bytes=4096)
TIMEOUT = float(os.environ.get("LAMPORT_TEST_TIMEOUT", "8"))
SYSTEM_CALLS = {"connect": 42, "socket": 41, "pidfd_getfd": 438}  # x86-64


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("jt", ctypes.c_ubyte),
        ("jf", ctypes.c_ubyte),
        ("k", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("first", ctypes.POINTER(_Instruction)))


def deny(names: list[str]) -> None:
    """Installs a seccomp filter on this process: the named system calls fail with EPERM."""
    load_number, equal, answer = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | 1
    code = [(load_number, 0, 0, 0)]
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        code.append((equal, left, 0, SYSTEM_CALLS[name]))  # jump to the last instruction
    code += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    instructions = (_Instruction * len(code))(*(_Instruction(*fields) for fields in code))
    program = _Program(len(code), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        raise OSError(ctypes.get_errno(), "seccomp is not available")


def die_at(point: str) -> None:
    if os.environ.get("LAMPORT_TEST_DIE") == point:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    rank, world_size, address = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("lamport_xpu").addHandler(handler)
    report: dict[str, object] = {"rank": rank, "error": None}
    started = time.monotonic()
    files = len(os.listdir("/proc/self/fd"))
    try:
        bootstrap = LocalBootstrap(rank, world_size, address, TIMEOUT)
        die_at("bootstrap")
        if names := os.environ.get("LAMPORT_TEST_DENY"):
            deny(names.split(","))
        native = LevelZeroWorkspace(rank, world_size, CHUNKS, TIMEOUT, device=rank)
        workspace = Workspace(bootstrap, native, "xpu", CHUNKS)
        report |= {"links": native.links, "addresses": native.addresses, "status": native.status_address}
        report["everyone"] = [json.loads(text) for text in bootstrap.all_gather(json.dumps(native.addresses).encode())]
        die_at("up")
        peers_alive = "LAMPORT_TEST_PEER_DIES" not in os.environ
        closing = time.monotonic()
        workspace.close(peers_alive=peers_alive)
        report["close_seconds"] = time.monotonic() - closing
        bootstrap.close()
    except LamportError as error:
        report |= {"error": type(error).__name__, "text": str(error)}
    report["seconds"] = time.monotonic() - started
    report["warnings"] = warnings
    if report["error"] is None:
        report["live"] = ctypes.CDLL(os.environ["LAMPORT_ZE_LOADER"]).lamport_test_ze_live()
        report["leaked_files"] = len(os.listdir("/proc/self/fd")) - files
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
