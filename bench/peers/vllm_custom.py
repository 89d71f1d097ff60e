"""vLLM's custom all-reduce, from the copy of its header in FlashInfer's wheel. In a graph, as vLLM uses it."""

from __future__ import annotations

import ctypes
from functools import partial

import torch

from lamport_xpu.bench.peers.base import Call, Peer
from lamport_xpu.bench.peers.cuda_library import library, ranks_share_a_gpu, why_missing
from lamport_xpu.bench.peers.out_of_place import OutOfPlace
from lamport_xpu.bench.units import FP16, DType

_LARGEST_BYTES = 8 << 20
_BLOCKS_AT_ONCE = {8: 132}
"""Blocks of 512 threads that an H100 or H200 holds, by the registers they take; 264 with fewer ranks. Ranks that share
a GPU must all fit: this kernel does not see to that, and then waits for ever."""


class VllmCustom(Peer):
    name = "vllm_custom"
    devices = ("cuda",)

    def unavailable(self) -> str | None:
        if self.setup.world.size not in (2, 4, 6, 8):
            return "vLLM has kernels for 2, 4, 6 and 8 ranks"
        return super().unavailable() or why_missing()

    def unsupported(self, dtype: DType) -> str | None:
        return None if dtype == FP16 else "only fp16 is compiled"

    def version(self) -> str | None:
        return "vLLM custom all-reduce (header in FlashInfer 0.7)"

    def open(self) -> None:
        world, lib = self.setup.world, library()
        self._shared = ranks_share_a_gpu(world)
        signals = lib.shared_memory(world, lib.size("vllm_signal_bytes", _LARGEST_BYTES))
        self._table = torch.empty(lib.size("vllm_table_bytes"), dtype=torch.uint8, device="cuda")
        self._object = ctypes.c_void_p()
        create = lib.function(
            "vllm_create", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
        )
        create(_pointers(signals), self._table.data_ptr(), world.rank, world.size, ctypes.addressof(self._object))
        self._use = lib.function("vllm_use_buffer", ctypes.c_void_p, ctypes.c_void_p)
        self._launch = lib.function("vllm_all_reduce", *[ctypes.c_void_p] * 3, ctypes.c_int, ctypes.c_void_p)
        torch.cuda.synchronize()
        world.mpi.Barrier()

    def prepare(self, buffer: torch.Tensor) -> Call:
        world = self.setup.world
        if buffer.numel() % 8:
            raise ValueError("vLLM needs whole 16-byte accesses")
        if buffer.nbytes > _LARGEST_BYTES:
            raise ValueError("larger than vLLM's own limit")
        blocks = min(36, -(-buffer.numel() // 8 // 512))
        if self._shared and world.size * blocks > _BLOCKS_AT_ONCE.get(world.size, 264):
            raise ValueError("would deadlock where ranks share a GPU: more blocks than it can hold at once")
        # Out of place, as vLLM calls it: in place a rank would read sums where peers' inputs were.
        source = torch.empty_like(buffer)
        self._use(self._object, _pointers(library().shared_tensor(world, source)))
        world.mpi.Barrier()
        launch = partial(self._launch, self._object, source.data_ptr(), buffer.data_ptr(), buffer.numel())
        return OutOfPlace(buffer, source, buffer, lambda: launch(torch.cuda.current_stream().cuda_stream))

    def close(self) -> None:
        torch.cuda.synchronize()
        self.setup.world.mpi.Barrier()


def _pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)
