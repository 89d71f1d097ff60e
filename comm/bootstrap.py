"""Getting the ranks to know each other, before any device memory is shared.

A bootstrap knows its rank and the world size and can gather small byte strings and wait for everyone, each within
a time-out. Three sources: an MPI communicator, a torch.distributed group or store, and a Unix socket (no MPI, no
torch). Nothing above this module knows which.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import time
from typing import Any, Protocol

from lamport_xpu.comm.errors import BootstrapTimeout

_LENGTH = struct.Struct("!I")


class Bootstrap(Protocol):
    """What the workspace needs of the outside world.

    Attributes:
        rank: this process, 0 to world_size - 1.
        world_size: number of ranks.
        timeout: seconds that `all_gather` and `barrier` may take before they raise BootstrapTimeout.
    """

    rank: int
    world_size: int
    timeout: float

    def all_gather(self, data: bytes) -> list[bytes]:
        """Every rank's `data`, in rank order."""

    def barrier(self) -> None:
        """Returns once all ranks have called it."""

    def close(self) -> None:
        """Releases what the bootstrap itself holds; the caller's communicator, group or store stays."""


class MpiBootstrap:
    """Over a private duplicate of an mpi4py communicator. Waits are polled, so a dead rank cannot hang them."""

    def __init__(self, comm: Any, timeout: float) -> None:
        self.rank: int = comm.rank
        self.world_size: int = comm.size
        self.timeout = timeout
        self._comm = comm.Dup()

    def all_gather(self, data: bytes) -> list[bytes]:
        import numpy as np

        sizes = np.empty(self.world_size, dtype=np.int64)
        self._wait(self._comm.Iallgather(np.array([len(data)], dtype=np.int64), sizes), "all_gather")
        received = bytearray(int(sizes.sum()))
        self._wait(self._comm.Iallgatherv(data, [received, sizes.tolist()]), "all_gather")
        ends = np.cumsum(sizes).tolist()
        return [bytes(received[end - size : end]) for end, size in zip(ends, sizes.tolist(), strict=True)]

    def barrier(self) -> None:
        self._wait(self._comm.Ibarrier(), "barrier")

    def close(self) -> None:
        # Comm.Free is collective and may block on a dead rank: the duplicate is left to MPI_Finalize.
        pass

    def _wait(self, request: Any, what: str) -> None:
        deadline = time.monotonic() + self.timeout
        while not request.Test():
            if time.monotonic() > deadline:
                raise BootstrapTimeout(
                    f"rank {self.rank}: MPI {what} incomplete after {self.timeout:g} s; another rank has died or does "
                    "not create the communicator"
                )
            time.sleep(0)


class TorchGroupBootstrap:
    """Over a torch.distributed process group that can carry CPU tensors (gloo, or mixed). The group's own time-out
    applies."""

    def __init__(self, group: Any, timeout: float) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)
        self.timeout = timeout

    def all_gather(self, data: bytes) -> list[bytes]:
        gathered: list[Any] = [None] * self.world_size
        self._dist.all_gather_object(gathered, data, group=self._group)
        return gathered

    def barrier(self) -> None:
        self.all_gather(b"")

    def close(self) -> None:
        pass


class TorchStoreBootstrap:
    """Over a torch.distributed store (TCPStore, FileStore, ...). `prefix` keeps several communicators apart."""

    def __init__(self, store: Any, rank: int, world_size: int, timeout: float, prefix: str = "lamport") -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self._store = store
        self._prefix = prefix
        self._round = 0

    def all_gather(self, data: bytes) -> list[bytes]:
        from datetime import timedelta

        key = f"{self._prefix}/{self._round}"
        self._round += 1
        self._store.set(f"{key}/{self.rank}", data)
        gathered = []
        deadline = time.monotonic() + self.timeout
        for peer in range(self.world_size):
            left = timedelta(seconds=max(0.001, deadline - time.monotonic()))
            try:
                self._store.wait([f"{key}/{peer}"], left)
            except RuntimeError as error:  # torch raises DistStoreError, a RuntimeError, when the time is up
                raise BootstrapTimeout(
                    f"rank {self.rank}: nothing from rank {peer} in the store after {self.timeout:g} s; it has died "
                    "or does not create the communicator"
                ) from error
            gathered.append(bytes(self._store.get(f"{key}/{peer}")))
        return gathered

    def barrier(self) -> None:
        self.all_gather(b"")

    def close(self) -> None:
        pass


class LocalBootstrap:
    """Over a Unix socket at `address` (a path all ranks can reach): rank 0 listens, the others connect."""

    def __init__(self, rank: int, world_size: int, address: str, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self._peers: list[socket.socket] = []
        if world_size == 1:
            return
        if rank == 0:
            self._peers = self._accept(address)
        else:
            self._peers = [self._connect(address)]

    def all_gather(self, data: bytes) -> list[bytes]:
        if self.world_size == 1:
            return [data]
        if self.rank == 0:
            gathered = [data]
            for peer, connection in enumerate(self._peers, start=1):
                gathered.append(self._receive(connection, peer))
            for peer, connection in enumerate(self._peers, start=1):
                self._send(connection, pickle.dumps(gathered), peer)
            return gathered
        self._send(self._peers[0], data, 0)
        result: list[bytes] = pickle.loads(self._receive(self._peers[0], 0))
        return result

    def barrier(self) -> None:
        self.all_gather(b"")

    def close(self) -> None:
        for connection in self._peers:
            connection.close()
        self._peers = []

    def _accept(self, address: str) -> list[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(address)
            server.bind(address)
            os.chmod(address, 0o600)  # what arrives here is unpickled: only this user may connect
            server.listen(self.world_size)
            found: dict[int, socket.socket] = {}
            deadline = time.monotonic() + self.timeout
            try:
                while len(found) < self.world_size - 1:
                    server.settimeout(max(0.001, deadline - time.monotonic()))
                    connection, _ = server.accept()
                    connection.settimeout(self.timeout)
                    peer = int(self._receive(connection, -1))
                    found[peer] = connection
            except TimeoutError as error:
                missing = sorted(set(range(1, self.world_size)) - set(found))
                for connection in found.values():
                    connection.close()
                raise BootstrapTimeout(
                    f"ranks {missing} did not connect to {address} within {self.timeout:g} s; start them with the same "
                    "address and world size"
                ) from error
            finally:
                os.unlink(address)
        return [found[peer] for peer in sorted(found)]

    def _connect(self, address: str) -> socket.socket:
        deadline = time.monotonic() + self.timeout
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self.timeout)
            try:
                connection.connect(address)
                self._send(connection, str(self.rank).encode(), 0)
                return connection
            except (FileNotFoundError, ConnectionRefusedError) as error:  # rank 0 is not listening yet
                connection.close()
                if time.monotonic() > deadline:
                    raise BootstrapTimeout(
                        f"rank 0 was not listening at {address} within {self.timeout:g} s; start it with that address"
                    ) from error
                time.sleep(0.01)

    def _send(self, connection: socket.socket, data: bytes, peer: int) -> None:
        try:
            connection.sendall(_LENGTH.pack(len(data)) + data)
        except (TimeoutError, ConnectionError) as error:
            raise BootstrapTimeout(f"rank {self.rank}: cannot reach rank {peer} ({error}); it has died") from error

    def _receive(self, connection: socket.socket, peer: int) -> bytes:
        try:
            (size,) = _LENGTH.unpack(self._exactly(connection, _LENGTH.size))
            return self._exactly(connection, size)
        except (TimeoutError, ConnectionError) as error:
            raise BootstrapTimeout(
                f"rank {self.rank}: nothing from rank {peer} within {self.timeout:g} s ({error or 'time-out'}); it has "
                "died or does not create the communicator"
            ) from error

    @staticmethod
    def _exactly(connection: socket.socket, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                raise ConnectionResetError("connection closed")
            data += part
        return bytes(data)
