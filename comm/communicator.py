"""The user's object: create it once per process, call its collectives from then on."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from types import TracebackType
from typing import Any

from lamport_xpu import _host
from lamport_xpu.comm import engines, policy
from lamport_xpu.comm.bootstrap import (
    Bootstrap,
    LocalBootstrap,
    MpiBootstrap,
    TorchGroupBootstrap,
    TorchStoreBootstrap,
)
from lamport_xpu.comm.errors import CollectiveTimeout, MismatchError, WorkspaceError
from lamport_xpu.comm.fused import FusedCollectives
from lamport_xpu.comm.policy import Thresholds
from lamport_xpu.comm.workspace import MAX_WORLD, Workspace, agree

#: (x, out): reduces with the library the communicator was created from, for sizes above two_shot_max_bytes.
Library = Callable[[Any, Any], None]

DEFAULT_MAX_BYTES = 64 << 20
DEFAULT_TIMEOUT = 10.0


class Communicator(FusedCollectives):
    """Collectives over a workspace shared by all ranks of one host.

    Create it with `from_mpi`, `from_torch` or `from_local`, on all ranks alike; creation is collective. Calls must be
    made in the same order with the same sizes and dtypes on all ranks. Not thread-safe: one thread per communicator.

    Attributes:
        rank: this process, 0 to world_size - 1.
        world_size: number of ranks, 1 to 8.
        device: "cpu", "xpu" or "cuda".
        max_bytes: largest tensor accepted, in bytes.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        device: str = "cpu",
        max_bytes: int = DEFAULT_MAX_BYTES,
        timeout: float = DEFAULT_TIMEOUT,
        thresholds: Thresholds | None = None,
        libraries: dict[str, Library] | None = None,
        queue: Any = None,
    ) -> None:
        """Collective over all ranks of `bootstrap`; takes the bootstrap over and closes it in `close`.

        Args:
            bootstrap: how the ranks reach each other.
            device: where tensors live: "cpu", or "xpu" or "cuda" for torch's current GPU. There a call is enqueued on
                torch's current stream and returns at once; it may be recorded in a graph.
            max_bytes: largest tensor accepted. Costs no memory: larger tensors stream through the workspace.
            timeout: seconds a collective may wait for a peer before it raises CollectiveTimeout.
            thresholds: which algorithm at which size; by default what --tune stored, or the built-in values.
            libraries: by dtype name, what reduces tensors above `two_shot_max_bytes`.
            queue: for "xpu", the in-order lamport_xpu._sycl.Queue to launch on (`Queue.at(address)` wraps a dpctl
                SyclQueue's `addressof_ref()`); by default torch.xpu's current stream, else a queue of our own.

        Raises:
            WorkspaceError: a rank could not set up its workspace, or the functional probe failed; on all ranks.
            BootstrapTimeout: a rank did not take part.
        """
        self.rank, self.world_size = bootstrap.rank, bootstrap.world_size
        self.device, self.max_bytes, self.timeout = device, max_bytes, timeout
        self._bootstrap = bootstrap
        self._libraries = libraries or {}
        if not 1 <= self.world_size <= MAX_WORLD:
            raise WorkspaceError(
                f"world size {self.world_size} is outside 1 to {MAX_WORLD}: lamport_xpu works inside one host; for "
                "more ranks create one communicator per host and combine the hosts with torch.distributed or MPI"
            )
        self._device = engines.find(device, queue)
        if timeout <= 0 or max_bytes < 4:
            raise ValueError(f"timeout must be positive and max_bytes at least 4, got {timeout} and {max_bytes}")
        chunks = policy.CHUNKS[device]
        native = self._device.workspace(self.rank, self.world_size, chunks, timeout)
        self._workspace = Workspace(bootstrap, native, device, chunks)
        limits = [self._limits(dtype, thresholds) for dtype in policy.DTYPES]
        self._engine = self._device.engine(native, bootstrap, limits, max_bytes)
        self._probe()
        self._all_reduce = self._engine.all_reduce_callable(_empty_like, self._library)
        # On the instance, so that a call goes straight to native code.
        checked = os.environ.get("LAMPORT_CHECK") == "1"
        self.all_reduce = self._checked_all_reduce if checked else self._all_reduce  # type: ignore[method-assign]
        self._check_call = self._compare_calls if checked else None

    @classmethod
    def from_mpi(cls, comm: Any, **options: Any) -> Communicator:
        """From an mpi4py communicator; keyword arguments as for Communicator."""
        bootstrap = MpiBootstrap(comm, options.get("timeout", DEFAULT_TIMEOUT))

        def library(x: Any, out: Any) -> None:
            import numpy as np
            from mpi4py import MPI

            comm.Allreduce(MPI.IN_PLACE if out is x else np.from_dlpack(x), np.from_dlpack(out))

        on_cpu = options.get("device", "cpu") == "cpu"
        return cls(bootstrap, libraries={"float32": library} if on_cpu else {}, **options)

    @classmethod
    def from_torch(
        cls,
        group: Any = None,
        *,
        store: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> Communicator:
        """From a torch.distributed group (default: the whole world), or from a store with rank and world_size."""
        timeout = options.get("timeout", DEFAULT_TIMEOUT)
        if store is not None:
            if rank is None or world_size is None:
                raise ValueError("from_torch(store=...) needs rank= and world_size= too")
            return cls(TorchStoreBootstrap(store, rank, world_size, timeout), **options)
        import torch.distributed as dist

        def library(x: Any, out: Any) -> None:
            if out is not x:
                out.copy_(x)
            dist.all_reduce(out, group=group)

        libraries: dict[str, Library] = dict.fromkeys(policy.DTYPES, library)
        return cls(TorchGroupBootstrap(group, timeout), libraries=libraries, **options)

    @classmethod
    def from_local(cls, rank: int, world_size: int, address: str, **options: Any) -> Communicator:
        """Without MPI or torch: the ranks meet at the Unix socket path `address`."""
        return cls(LocalBootstrap(rank, world_size, address, options.get("timeout", DEFAULT_TIMEOUT)), **options)

    def all_reduce(self, x: Any, out: Any = None) -> Any:
        """Sum of `x` over all ranks: fp32 accumulation in rank order, rounded once; the same bits on every rank.

        A 32-bit word of `x` equal to 0x80000000 (-0.0, or a 16-bit -0.0 above +0.0) counts as zero without its sign,
        and any NaN comes out as the canonical one.

        Args:
            x: contiguous torch tensor, NumPy array or DLPack producer on the communicator's device; float32,
                float16 or bfloat16; any shape; at most `max_bytes`.
            out: where the result goes: `x` itself (in place), or memory that does not overlap it, of the same
                dtype and size. By default a new tensor like `x`.

        Returns:
            `out`.

        Raises:
            TensorError: the tensors do not fit (UnsupportedDtypeError, NonContiguousError, TooLargeError,
                WrongDeviceError, ...); nothing was sent, the communicator stays usable.
            CollectiveTimeout: a peer did not come; the communicator can only be closed. On a GPU, which works on
                while the host has returned, the next call or `check` raises it for an earlier one.
            ClosedError: closed, or abandoned by an earlier time-out.
        """
        return self._all_reduce(x, out)

    def check(self) -> None:
        """Raises CollectiveTimeout if a collective that has run on the GPU by now was given up; does not wait."""
        self._engine.check()

    def close(self) -> None:
        """Frees the workspace. Collective on devices with memory of their own; harmless to repeat."""
        if self._workspace is not None:
            self._forget_handle()
            self._engine.close()
            self._workspace.close()
            self._bootstrap.close()
            self._workspace = None  # type: ignore[assignment]

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _limits(self, dtype: str, thresholds: Thresholds | None) -> tuple[int, int]:
        chosen = thresholds or policy.load(self.device, self.world_size, dtype)
        two_shot = chosen.two_shot_max_bytes if dtype in self._libraries else policy.UNLIMITED
        return chosen.one_shot_max_bytes, two_shot

    def _probe(self) -> None:
        """An all-reduce with a known answer before the user's first: the smallest, and one of many packets."""
        import numpy as np

        def probe() -> None:
            wrong = []
            for count in (1, min(4099, self.max_bytes // 4)):
                x = self._device.tensor(np.arange(count, dtype=np.float32) + self.rank)
                try:
                    if not self._engine.all_reduce(x, x):
                        continue  # above two_shot_max_bytes: the library's size
                    found = self._device.array(x)
                    self._engine.check()
                except CollectiveTimeout as error:
                    raise WorkspaceError(f"functional probe: {error}") from error
                expected = np.arange(count, dtype=np.float32) * self.world_size + sum(range(self.world_size))
                if not np.array_equal(found, expected):
                    wrong.append(count)
            if wrong:  # told only now: the peers would wait for this rank in the next call
                raise WorkspaceError(f"functional probe: wrong sum of {wrong[0]} elements; peers' writes are lost")

        try:
            agree(self._bootstrap, "complete the functional probe", probe)
        except BaseException:
            self.close()
            raise

    def _checked_all_reduce(self, x: Any, out: Any = None) -> Any:
        self._compare_calls("all_reduce", x)
        return self._all_reduce(x, out)

    def _compare_calls(self, op: str, x: Any, nbytes: int | None = None) -> None:
        """LAMPORT_CHECK=1: compares operation, dtype and size (x's by default) on all ranks before anything is sent."""
        dtype, size = _host.describe(x)
        mine = (op, dtype, size if nbytes is None else nbytes)
        everyone = [pickle.loads(data) for data in self._bootstrap.all_gather(pickle.dumps(mine))]
        if any(theirs != mine for theirs in everyone):
            calls = ", ".join(f"rank {rank}: {op} {dtype} {size} B" for rank, (op, dtype, size) in enumerate(everyone))
            raise MismatchError(f"ranks disagree on the call ({calls}); fix the caller: all ranks must make the same")

    def _library(self, x: Any, out: Any) -> None:
        self._libraries[_host.describe(x)[0]](x, out)


def _empty_like(x: Any) -> Any:
    if hasattr(x, "new_empty"):  # torch
        return x.new_empty(x.shape)
    import numpy as np

    return np.empty_like(x)
