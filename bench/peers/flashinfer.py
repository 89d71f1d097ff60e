"""FlashInfer's one-shot Lamport all-reduce, plain and with residual add and RMSNorm, from its wheel's headers."""

from __future__ import annotations

import ctypes
import struct
from functools import partial

import torch

from lamport_xpu.bench.peers.base import Call, Peer
from lamport_xpu.bench.peers.cuda_library import library, ranks_share_a_gpu, why_missing
from lamport_xpu.bench.units import FP16, DType

_HIDDEN = (3072, 4096, 1024, 512, 64, 8)
"""The first that divides a size is the hidden dimension."""
_ONE_SHOT_BYTES = 2 << 20
_FLAGS_BYTES = 256 * 1024
_NEGATIVE_ZEROS = 0x80008000
_MOST_THREADS = 1 << 17
"""Ranks that share a GPU must all fit on it, with overlap twice: this kernel does not see to that, and then waits for
ever."""


class FlashInfer(Peer):
    """One kernel a call, each starting when the one before has ended; fp16 accumulation is its default."""

    name = "flashinfer"
    devices = ("cuda",)
    norm = False
    overlap = False

    def unavailable(self) -> str | None:
        if self.setup.world.size not in (2, 4, 8):
            return "FlashInfer has kernels for 2, 4 and 8 ranks"
        return super().unavailable() or why_missing()

    def unsupported(self, dtype: DType) -> str | None:
        return None if dtype == FP16 else "only fp16 is compiled"

    def version(self) -> str | None:
        return "FlashInfer 0.7 (headers)"

    def open(self) -> None:
        world, lib = self.setup.world, library()
        self._shared = ranks_share_a_gpu(world)
        slots = world.size * _ONE_SHOT_BYTES  # of one of its three buffers
        pointers = lib.shared_memory(world, slots)
        pointers += lib.shared_memory(world, _FLAGS_BYTES)
        pointers += lib.shared_memory(world, 3 * slots, _NEGATIVE_ZEROS)
        # Counter, flag of the two-shot, flag of the one-shot, size of a buffer, how much of the last to clear.
        self._state = torch.tensor([0, 0, 0, slots, 0], dtype=torch.int32, device="cuda")
        pointers.append(self._state.data_ptr())
        packed = struct.unpack(f"{len(pointers)}q", struct.pack(f"{len(pointers)}Q", *pointers))
        self._workspace = torch.tensor(packed, dtype=torch.int64, device="cuda")
        self._launch = lib.function(
            "flashinfer_all_reduce", *[ctypes.c_int] * 4, *[ctypes.c_void_p] * 6, ctypes.c_int, ctypes.c_void_p
        )
        torch.cuda.synchronize()
        world.mpi.Barrier()

    def prepare(self, buffer: torch.Tensor) -> Call:
        hidden = next((h for h in _HIDDEN if buffer.numel() % h == 0), None)
        if hidden is None:
            raise ValueError("FlashInfer needs whole 16-byte accesses")
        if not self.norm:
            return self._call(buffer, buffer, hidden)
        weight = torch.ones(hidden, dtype=buffer.dtype, device="cuda")
        return self._call(buffer, buffer, hidden, torch.zeros_like(buffer), torch.empty_like(buffer), weight)

    def add_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Call | None:
        if x.dtype != torch.float16:
            raise ValueError("only fp16 is compiled")
        normed, new_residual = torch.empty_like(x), torch.empty_like(x)
        launch = self._call(x, new_residual, x.shape[-1], residual, normed, weight)

        def call() -> tuple[torch.Tensor, torch.Tensor]:
            launch()
            return normed, new_residual

        return call

    def _call(self, x: torch.Tensor, out: torch.Tensor, hidden: int, *norm: torch.Tensor) -> Call:
        """`norm`: residual, where the normalised sum goes, weight."""
        world, count = self.setup.world, x.numel()
        if x.nbytes > _ONE_SHOT_BYTES:
            raise ValueError("too large for one-shot")
        if self._shared and world.size * count // 8 * (1 + self.overlap) > _MOST_THREADS:
            raise ValueError("would deadlock where ranks share a GPU: more blocks than it can hold at once")
        launch = partial(
            self._launch, world.rank, world.size, count, hidden, self._workspace.data_ptr(), x.data_ptr(),
            out.data_ptr(), *((t.data_ptr() for t in norm) if norm else (None, None, None)), int(self.overlap),
        )  # fmt: skip

        def call() -> None:
            launch(torch.cuda.current_stream().cuda_stream)
            norm  # noqa: B018 - as long as the call can be made

        return call

    def close(self) -> None:
        torch.cuda.synchronize()
        self.setup.world.mpi.Barrier()


class FlashInferOverlap(FlashInfer):
    """Launched by programmatic dependent launch, as its users may ask for."""

    name = "flashinfer_overlap"
    overlap = True


class FlashInferNorm(FlashInfer):
    """With residual add and RMSNorm. The sum is checked, the norm is not."""

    name = "flashinfer_norm"
    norm = True


class FlashInferNormOverlap(FlashInferNorm):
    name = "flashinfer_norm_overlap"
    overlap = True
