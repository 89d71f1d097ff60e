"""The IPC workspace: bring-up in an order that cannot leave one rank working and another not, and teardown.

Bring-up (every step ends with all ranks telling each other how it went, and any rank's no is every rank's no):
compare settings; allocate and fill with the sentinel; exchange handles and open; write a cookie into every peer's
memory and find every peer's cookie in one's own, because an opened handle alone proves nothing; withdraw names.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from lamport_xpu.comm import errors
from lamport_xpu.comm.bootstrap import Bootstrap
from lamport_xpu.comm.errors import BootstrapTimeout, CookieError, LamportError, WorkspaceError
from lamport_xpu.comm.policy import ChunkSizes

MAX_WORLD = 8

T = TypeVar("T")


class NativeWorkspace(Protocol):
    """What a device's native half provides; errors are raised as WorkspaceError or a subclass."""

    #: Whether memory may be freed only after all peers have closed it (device memory yes, shared memory no).
    close_is_collective: bool

    def allocate(self, token: str) -> bytes:
        """Allocates and fills this rank's memory; returns the handle that peers open. `token` names the job."""

    def open_peer(self, rank: int, handle: bytes) -> None:
        """Maps the memory of `rank`."""

    def write_cookie(self, peer: int, value: int) -> None:
        """Writes a 32-bit value into this rank's cookie line in the peer's memory."""

    def read_cookie(self, source: int) -> int:
        """Reads what `source` has written into its cookie line in own memory."""

    def withdraw(self, token: str) -> None:
        """Removes the names under which any rank's memory can be opened; mappings stay. No error if none is left."""

    def close_peers(self) -> None:
        """Unmaps peers' memory."""

    def free(self) -> None:
        """Frees this rank's memory."""


def host_identity() -> str:
    """Equal on two ranks exactly if they share a kernel: shared memory and descriptors can pass between them."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Workspace:
    """Exchange memory of one rank, opened by all its peers.

    Args:
        bootstrap: how the ranks reach each other.
        native: the device's half.
        device: "cpu", "xpu" or "cuda"; must agree on all ranks, as must `chunks`.
        chunks: capacities of slots and slices.

    Raises:
        WorkspaceError: on every rank if any rank fails; the message quotes each failing rank.
        BootstrapTimeout: a rank did not take part.
    """

    def __init__(self, bootstrap: Bootstrap, native: NativeWorkspace, device: str, chunks: ChunkSizes) -> None:
        self.native = native
        self._bootstrap = bootstrap
        self._token: str | None = None
        try:
            self._bring_up(device, chunks)
        except BaseException:
            if self._token is not None:
                self.native.withdraw(self._token)  # every rank's: one that was killed cannot do it
            self.native.close_peers()
            self.native.free()
            raise

    def close(self, peers_alive: bool = True) -> None:
        """Unmaps and frees. Collective where the device needs it, unless `peers_alive` is False."""
        collective = peers_alive and self.native.close_is_collective
        collective = collective and self._all_here()
        self.native.close_peers()
        if collective:
            self._all_here()
        self.native.free()

    def _all_here(self) -> bool:
        """A barrier; False if a rank has died, for which nobody should wait again."""
        try:
            self._bootstrap.barrier()
        except BootstrapTimeout:
            return False
        return True

    def _bring_up(self, device: str, chunks: ChunkSizes) -> None:
        rank, world_size = self._bootstrap.rank, self._bootstrap.world_size
        settings = {"device": device, "chunks": chunks, "host": host_identity()}
        everyone = [
            pickle.loads(data)
            for data in self._bootstrap.all_gather(pickle.dumps((settings, secrets.token_hex(8), os.getpid())))
        ]
        self.pids = [pid for _, _, pid in everyone]
        for peer, (theirs, _, _) in enumerate(everyone):
            different = {name: (settings[name], value) for name, value in theirs.items() if value != settings[name]}
            if different:
                raise WorkspaceError(f"rank {rank} and rank {peer} differ in {different}; create it alike on all ranks")
        self._token = token = everyone[0][1]

        handle = agree(self._bootstrap, "allocate its workspace", lambda: self.native.allocate(token))
        handles = self._bootstrap.all_gather(handle)
        peers = [peer for peer in range(world_size) if peer != rank]
        agree(self._bootstrap, "open its peers' memory", lambda: self._open(peers, handles))
        agree(self._bootstrap, "write to its peers' memory", lambda: self._write_cookies(peers, token))
        agree(self._bootstrap, "find its peers' writes in its memory", lambda: self._check_cookies(peers, token))
        self.native.withdraw(token)

    def _open(self, peers: list[int], handles: list[bytes]) -> None:
        for peer in peers:
            self.native.open_peer(peer, handles[peer])

    def _write_cookies(self, peers: list[int], token: str) -> None:
        for peer in peers:
            self.native.write_cookie(peer, _cookie(token, self._bootstrap.rank, peer))

    def _check_cookies(self, peers: list[int], token: str) -> None:
        for peer in peers:
            found, expected = self.native.read_cookie(peer), _cookie(token, peer, self._bootstrap.rank)
            if found != expected:
                raise CookieError(
                    f"the cookie of rank {peer} did not arrive (found {found:#x}, expected {expected:#x}): its handle "
                    "opened, but its writes do not reach this rank's memory; peer-to-peer access is broken: on GPUs "
                    "check Resizable BAR and the IOMMU (iommu=pt), and update kernel and driver"
                )


def _cookie(token: str, source: int, target: int) -> int:
    return (int(token, 16) ^ (source * MAX_WORLD + target + 1) * 0x9E3779B1) & 0xFFFFFFFF


def agree(bootstrap: Bootstrap, step: str, action: Callable[[], T]) -> T:
    """Runs `action` on every rank and lets all know how it went: returns its result only if all ranks succeeded.

    Raises:
        WorkspaceError: an action failed somewhere. This rank's own error is raised as it is; the others are told
            its text and raise the same class, so that callers on all ranks can handle it alike.
    """
    failure: LamportError | None = None
    try:
        result = action()
    except LamportError as error:
        failure = error
    mine = (type(failure).__name__, str(failure)) if failure else None
    verdicts = [pickle.loads(data) for data in bootstrap.all_gather(pickle.dumps(mine))]
    if failure:
        raise failure
    bad = [(rank, *verdict) for rank, verdict in enumerate(verdicts) if verdict]
    if bad:
        text = "; ".join(f"rank {rank} could not {step}: {message}" for rank, _, message in bad)
        raise _error_class({name for _, name, _ in bad})(text)
    return result


def _error_class(names: set[str]) -> type[WorkspaceError]:
    """The class that all failing ranks raised, if it is one kind of WorkspaceError."""
    kind = getattr(errors, names.pop(), None) if len(names) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, WorkspaceError) else WorkspaceError
