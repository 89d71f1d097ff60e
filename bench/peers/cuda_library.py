"""build/cuda_peers.so (bench/native/build_cuda_peers.sh): other people's kernels, and memory that ranks share."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from lamport_xpu.bench.launch import World

PATH = Path(__file__).resolve().parents[2] / "build" / "cuda_peers.so"
HANDLE_BYTES = 64


class LibraryError(RuntimeError):
    """A call into the library failed."""


class CudaLibrary:
    """Calls by name; a failure is a LibraryError."""

    def __init__(self, path: Path = PATH) -> None:
        self._library = ctypes.CDLL(str(path))
        self.has_flashinfer = bool(self._library.peers_have_flashinfer())

    def function(self, name: str, *types: type) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        """The function, raising on failure. `types` are those of its arguments."""
        function = getattr(self._library, name)
        function.argtypes = types
        function.restype = ctypes.c_char_p
        function.errcheck = _raise_if_failed
        return function

    def size(self, name: str, *arguments: int) -> int:
        """What a function returns that cannot fail."""
        function = getattr(self._library, name)
        function.argtypes = [ctypes.c_uint64] * len(arguments)
        function.restype = ctypes.c_uint64
        return int(function(*arguments))

    def shared_memory(self, world: World, nbytes: int, word: int = 0) -> list[int]:
        """Allocates on every rank, filled with `word`; the addresses by rank, as this process sees them."""
        memory, handle = ctypes.c_void_p(), ctypes.create_string_buffer(HANDLE_BYTES)
        allocate = self.function("peers_allocate", ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
        allocate(nbytes, word, ctypes.addressof(memory), ctypes.addressof(handle))
        handles = world.mpi.allgather(handle.raw)
        return [memory.value or 0 if r == world.rank else self.open(h) for r, h in enumerate(handles)]

    def shared_tensor(self, world: World, tensor: torch.Tensor) -> list[int]:
        """The addresses of every rank's tensor, as this process sees them."""
        handle, offset = ctypes.create_string_buffer(HANDLE_BYTES), ctypes.c_uint64()
        share = self.function("peers_share", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        share(tensor.data_ptr(), ctypes.addressof(handle), ctypes.addressof(offset))
        everyone = world.mpi.allgather((handle.raw, offset.value))
        return [tensor.data_ptr() if r == world.rank else self.open(h) + o for r, (h, o) in enumerate(everyone)]

    @cache  # noqa: B019 - an allocation can be opened once; one library lives as long as the process
    def open(self, handle: bytes) -> int:
        """A peer's allocation."""
        memory = ctypes.c_void_p()
        self.function("peers_open", ctypes.c_char_p, ctypes.c_void_p)(handle, ctypes.addressof(memory))
        return memory.value or 0


def _raise_if_failed(message: bytes | None, function: object, _arguments: object) -> None:
    if message is not None:
        raise LibraryError(f"{getattr(function, '__name__', 'call')}: {message.decode()}")


@cache
def library() -> CudaLibrary:
    """The library of this process."""
    return CudaLibrary()


def why_missing() -> str | None:
    """Why the kernels of FlashInfer and vLLM cannot be run, or None."""
    if not PATH.exists():
        return "build/cuda_peers.so is missing (bench/native/build_cuda_peers.sh FLASHINFER_DATA makes it)"
    return None if library().has_flashinfer else "build/cuda_peers.so was made without FlashInfer's headers"


def ranks_share_a_gpu(world: World) -> bool:
    """Whether two ranks use the same GPU."""
    gpus = world.mpi.allgather(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    return len(set(gpus)) < world.size
