"""Who gets the descriptor from the exporter's socket, and until when."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Runs in a child, because the loader is opened once a process.
CHILD = """
import sys
from lamport_xpu._level_zero import ZeWorkspace
mine = ZeWorkspace(0, 2, 4096, 4096, device=0)
handle = mine.allocate("job")
print(handle.hex(), flush=True)
for line in sys.stdin:
    if line.strip() == "withdraw":
        mine.withdraw("job")
    print("done", flush=True)
"""


@pytest.fixture
def exporter(host_driver: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"LAMPORT_ZE_LOADER": str(host_driver)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.wait(timeout=10)


def offer(exporter: subprocess.Popen[str]) -> tuple[str, bytes]:
    """Address and token in the handle that the exporter published."""
    assert exporter.stdout is not None
    handle = bytes.fromhex(exporter.stdout.readline())
    found = re.search(rb"lamport-xpu\.\d+\.[0-9a-f]{12}", handle)
    assert found
    token_at = found.start() + 64 + 64  # behind the address and the error text
    return "\0" + found[0].decode(), handle[token_at : token_at + 16]


def ask(address: str, token: bytes) -> int:
    """How many descriptors the exporter gives for this token."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(5)
        client.connect(address)
        client.sendall(token)
        client.shutdown(socket.SHUT_WR)
        _, descriptors, _, _ = socket.recv_fds(client, 1, 4)
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def test_only_the_token_opens(exporter: subprocess.Popen[str]) -> None:
    address, token = offer(exporter)
    assert ask(address, bytes(16)) == 0
    assert ask(address, token[:15]) == 0
    assert ask(address, token) == 1
    assert ask(address, token) == 1  # one exporter, many peers


def test_a_silent_client_does_not_block_the_others(exporter: subprocess.Popen[str]) -> None:
    address, token = offer(exporter)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(address)
        assert ask(address, token) == 1


def test_nothing_is_served_after_withdraw(exporter: subprocess.Popen[str]) -> None:
    address, token = offer(exporter)
    assert exporter.stdin is not None
    assert exporter.stdout is not None
    exporter.stdin.write("withdraw\n")
    exporter.stdin.flush()
    assert exporter.stdout.readline() == "done\n"
    with pytest.raises(ConnectionRefusedError):
        ask(address, token)
