"""Exchange memory on an Intel GPU: the native workspace plus what is said in the log."""

from __future__ import annotations

import logging

from lamport_xpu._level_zero import ZeWorkspace
from lamport_xpu.comm.policy import ChunkSizes

log = logging.getLogger("lamport_xpu")


class LevelZeroWorkspace(ZeWorkspace):  # type: ignore[misc]  # an extension module has no types
    """NativeWorkspace on device memory shared through Level Zero IPC.

    Args:
        rank, world_size, chunks: as of all ranks' workspaces.
        timeout: seconds that peers wait for this rank in bring-up. A driver call may take a quarter of it,
            one of the teardown half, so that a stuck driver is reported before the peers give up.
        device: index of the GPU in the driver's list.
        queue_handles: (ze_context_handle_t, ze_device_handle_t) of the caller's queue as integers, in place
            of `device`.
        verify: check each mapping by reading the peer's memory through it. False only for drivers that
            execute nothing.
    """

    #: Device memory must stay until every peer has unmapped it.
    close_is_collective = True

    def __init__(
        self,
        rank: int,
        world_size: int,
        chunks: ChunkSizes,
        timeout: float,
        device: int = 0,
        queue_handles: tuple[int, int] | None = None,
        verify: bool = True,
    ) -> None:
        context_handle, device_handle = queue_handles or (0, 0)
        super().__init__(
            rank,
            world_size,
            chunks.slot_bytes,
            chunks.slice_bytes,
            device=device,
            context_handle=context_handle,
            device_handle=device_handle,
            timeout=timeout / 4,
            close_timeout=timeout / 2,
        )
        self._rank = rank
        self._verify = verify
        self._warned = 0

    def open_peer(self, rank: int, handle: bytes) -> None:
        super().open_peer(rank, handle, self._verify)
        mode, reason = self.links[rank]
        log.info("rank %d opened the memory of rank %d: IPC mode %s (%s)", self._rank, rank, mode, reason)

    def close_peers(self) -> None:
        super().close_peers()
        self._warn()

    def free(self) -> None:
        super().free()
        self._warn()

    def _warn(self) -> None:
        for text in self.warnings[self._warned :]:
            log.warning("rank %d: %s", self._rank, text)
        self._warned = len(self.warnings)
