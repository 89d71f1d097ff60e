"""torch.distributed as a peer: a process group of the backend's own, over a TCP store on loopback."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import ClassVar

import torch

from lamport_xpu.bench.peers.base import Call, Peer

_STALL = timedelta(seconds=60)
"""After this a collective raises instead of waiting for ever, where the backend honours it (gloo does)."""


class TorchGroup(Peer):
    backend: ClassVar[str]

    def version(self) -> str | None:
        return f"torch {torch.__version__}"

    def open(self) -> None:
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in its __all__

        world = self.setup.world
        if dist.is_initialized():  # another torch backend came first; a second default group is not allowed
            self._group = dist.new_group(backend=self.backend, timeout=_STALL)
            return
        # Rank 0 takes a free port and tells the others; nothing to configure, no clash between runs.
        server: list[TCPStore] = []

        def port() -> int:
            server.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
            return int(server[0].port)

        shared = world.from_rank_zero(port)
        store = server[0] if server else TCPStore("127.0.0.1", shared, is_master=False, wait_for_workers=False)
        dist.init_process_group(self.backend, store=store, rank=world.rank, world_size=world.size, timeout=_STALL)
        self._group = dist.group.WORLD

    def prepare(self, buffer: torch.Tensor) -> Call:
        import torch.distributed as dist

        return partial(dist.all_reduce, buffer, group=self._group)

    def close(self) -> None:
        import torch.distributed as dist

        if hasattr(self, "_group") and dist.is_initialized():
            dist.destroy_process_group(self._group)
