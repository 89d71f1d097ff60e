"""oneCCL by its own C++ API (native/oneccl_binding.cpp) on host buffers, under the current CCL_* settings."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryFile

import torch

from lamport_xpu.bench.peers.base import Call, Peer
from lamport_xpu.bench.peers.ccl_environment import ccl_variant, set_host_defaults
from lamport_xpu.bench.units import DTYPES

_NAME_OF = {d.torch: d.name for d in DTYPES.values()}


class OneCcl(Peer):
    name = "oneccl"
    requires = ("lamport_xpu._oneccl",)

    @property
    def variant(self) -> str:
        return ccl_variant(self.setup.cached_operations)

    def unavailable(self) -> str | None:
        self._quiet = "CCL_LOG_LEVEL" not in os.environ
        set_host_defaults()
        return super().unavailable()

    def version(self) -> str | None:
        from lamport_xpu import _oneccl

        return f"oneCCL {_oneccl.version()}"

    def open(self) -> None:
        with _without_warnings() if self._quiet else nullcontext():
            self._connect()
        self._serial = itertools.count()

    def _connect(self) -> None:
        from lamport_xpu import _oneccl

        world = self.setup.world
        _oneccl.init()
        main: list[_oneccl.Kvs] = []  # rank 0 keeps the object, the others only need its address

        def address() -> bytes:
            main.append(_oneccl.Kvs())
            return bytes(main[0].address)

        shared = world.from_rank_zero(address)
        self._kvs = main[0] if main else _oneccl.Kvs(shared)
        self._comm = _oneccl.Communicator(world.size, world.rank, self._kvs)

    def prepare(self, buffer: torch.Tensor) -> Call:
        from lamport_xpu import _oneccl

        match_id = f"allreduce-{next(self._serial)}" if self.setup.cached_operations else ""
        return _oneccl.AllReduce(
            self._comm, buffer.data_ptr(), buffer.numel(), _NAME_OF[buffer.dtype], match_id=match_id
        )

    def close(self) -> None:
        self._comm = self._kvs = None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Drop CCL_WARN lines from stdout: that CCL_LOG_LEVEL=error is not the default is the first warning."""
    stdout = os.dup(1)
    with TemporaryFile() as caught:
        os.dup2(caught.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
            caught.seek(0)
            os.write(1, b"".join(line for line in caught if b"|CCL_WARN|" not in line))
