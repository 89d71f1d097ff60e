"""What differs between devices, above the native code: where tensors live, and which native halves serve them."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from lamport_xpu import _host
from lamport_xpu.comm import mps
from lamport_xpu.comm.bootstrap import Bootstrap
from lamport_xpu.comm.errors import WorkspaceError
from lamport_xpu.comm.policy import ChunkSizes

Limits = list[tuple[int, int]]

# A pause takes some 40-70 ns; a peer on its own core is later than 100 us only when it has other work.
_SPINS_OWN_CORE = 2000
# The peer may be waiting for this very core.
_SPINS_SHARED_CORE = 8


class Engine(Protocol):
    """The collectives over a ready workspace."""

    def all_reduce(self, x: Any, out: Any) -> bool:
        """False if the size belongs to the library, and nothing was done."""

    def all_reduce_callable(self, empty_like: Callable[[Any], Any], library: Callable[[Any, Any], None]) -> Any:
        """all_reduce(x, out=None) as a bare callable."""

    def check(self) -> None:
        """Raises CollectiveTimeout if a call enqueued earlier was given up."""

    def close(self) -> None:
        """Refuses further calls."""


class Device(Protocol):
    """A kind of device, as the communicator sees it."""

    def workspace(self, rank: int, world_size: int, chunks: ChunkSizes, timeout: float) -> Any:
        """The native half of the workspace (workspace.NativeWorkspace)."""

    def engine(self, native: Any, bootstrap: Bootstrap, limits: Limits, max_bytes: int) -> Engine:
        """The collectives; collective over all ranks."""

    def tensor(self, array: NDArray[Any]) -> Any:
        """A tensor on the device with these values."""

    def array(self, tensor: Any) -> NDArray[Any]:
        """A tensor's values, once all work enqueued on it is done."""


class Cpu:
    def workspace(self, rank: int, world_size: int, chunks: ChunkSizes, timeout: float) -> Any:
        return _host.ShmWorkspace(rank, world_size, chunks.slot_bytes, chunks.slice_bytes, timeout)

    def engine(self, native: Any, bootstrap: Bootstrap, limits: Limits, max_bytes: int) -> Engine:
        cores = [pickle.loads(data) for data in bootstrap.all_gather(pickle.dumps(os.sched_getaffinity(0)))]
        own_core = len(set().union(*cores)) >= bootstrap.world_size
        return _host.HostCollectives(native, limits, _SPINS_OWN_CORE if own_core else _SPINS_SHARED_CORE, max_bytes)

    def tensor(self, array: NDArray[Any]) -> Any:
        return array

    def array(self, tensor: Any) -> NDArray[Any]:
        return tensor


class Cuda:
    """torch's current GPU at the time of creation; calls go to torch's current stream on it."""

    def __init__(self) -> None:
        try:
            import torch

            from lamport_xpu import _cuda
        except ImportError as error:
            raise WorkspaceError(
                f'device "cuda" cannot be used: {error}; it needs torch, and lamport-xpu built where nvcc is found'
            ) from error
        if not torch.cuda.is_available():
            raise WorkspaceError('device "cuda" cannot be used: torch finds no CUDA GPU')
        self._native = _cuda
        self._index = torch.cuda.current_device()

    def workspace(self, rank: int, world_size: int, chunks: ChunkSizes, timeout: float) -> Any:
        return self._native.CudaWorkspace(self._index, rank, world_size, chunks.slot_bytes, chunks.slice_bytes, timeout)

    def engine(self, native: Any, bootstrap: Bootstrap, limits: Limits, max_bytes: int) -> Engine:
        import torch

        if bootstrap.rank == 0 and native.ranks_on_this_gpu > 1 and not mps.running():
            warnings.warn(mps.ADVICE, RuntimeWarning, stacklevel=2)
        # What torch.cuda.current_stream() asks too, without building an object on every call.
        current_stream = partial(torch._C._cuda_getCurrentRawStream, self._index)
        return self._native.CudaCollectives(native, limits, max_bytes, current_stream)

    def tensor(self, array: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(array).to(f"cuda:{self._index}")

    def array(self, tensor: Any) -> NDArray[Any]:
        array: NDArray[Any] = tensor.cpu().numpy()
        return array


class Xpu:
    """An Intel GPU: the one behind `queue` (an in-order lamport_xpu._sycl.Queue) if given; with torch.xpu its current
    GPU and, call by call, its current stream; else the GPU numbered like the rank, on a queue of our own."""

    def __init__(self, queue: Any = None) -> None:
        try:
            from lamport_xpu import _sycl
            from lamport_xpu.comm.level_zero import LevelZeroWorkspace
        except ImportError as error:
            raise WorkspaceError(
                f'device "xpu" cannot be used: {error}; build lamport-xpu where the SYCL wheels are installed '
                "(pip install 'lamport-xpu[sycl]', then --no-build-isolation) or with icpx"
            ) from error
        self._native, self._workspace_class = _sycl, LevelZeroWorkspace
        self._given = queue is not None
        self._queue = queue
        self._torch = None if self._given else _torch_xpu()

    def workspace(self, rank: int, world_size: int, chunks: ChunkSizes, timeout: float) -> Any:
        if self._torch:
            self._queue = self._native.Queue.at(self._torch.current_stream().sycl_queue)
        elif self._queue is None:
            self._queue = self._native.Queue.create("gpu", rank)
        context, device = self._queue.level_zero_handles
        handles = (context, device) if context else None  # none on the CPU device, which stands in for a GPU in tests
        self._chunks, self._timeout = chunks, timeout
        return self._workspace_class(rank, world_size, chunks, timeout, device=rank, queue_handles=handles)

    def engine(self, native: Any, bootstrap: Bootstrap, limits: Limits, max_bytes: int) -> Engine:
        engine = self._native.SyclCollectives(
            self._queue,
            native.addresses,
            native.status_address,
            bootstrap.rank,
            self._chunks.slot_bytes,
            self._chunks.slice_bytes,
            limits,
            max_bytes,
            self._timeout,
            **({"device_id": self._torch.current_device()} if self._torch else {}),
        )
        if self._torch:
            engine.follow(lambda: self._torch.current_stream().sycl_queue)
        return engine

    def tensor(self, array: NDArray[Any]) -> Any:
        if self._torch:
            import torch

            return torch.from_numpy(array).to("xpu")
        if self._queue.level_zero_handles[0]:
            raise WorkspaceError(
                "the functional probe needs torch to allocate GPU memory, and torch finds no XPU; install its XPU build"
            )
        return array

    def array(self, tensor: Any) -> NDArray[Any]:
        self._queue.wait()
        array: NDArray[Any] = tensor.cpu().numpy() if self._torch else tensor
        return array


def _torch_xpu() -> Any:
    """torch.xpu if it can be used, else None."""
    try:
        import torch
    except ImportError:
        return None
    return torch.xpu if torch.xpu.is_available() else None


_DEVICES: dict[str, Callable[..., Device]] = {"cpu": Cpu, "cuda": Cuda, "xpu": Xpu}


def find(name: str, queue: Any = None) -> Device:
    """The device called `name`; `queue` is for "xpu" alone.

    Raises:
        WorkspaceError: there is none, or it cannot be used here; the message says why.
    """
    if name not in _DEVICES:
        raise WorkspaceError(f"device {name!r} is not known; use one of {', '.join(_DEVICES)}")
    if queue is None:
        return _DEVICES[name]()
    if name != "xpu":
        raise WorkspaceError(f'a queue goes with device="xpu", not with {name!r}; leave it out')
    return _DEVICES[name](queue)
