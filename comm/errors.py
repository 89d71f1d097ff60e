"""Errors of the package; each message says what to do next."""

from __future__ import annotations


class LamportError(Exception):
    """Base of all errors raised by lamport_xpu."""


class WorkspaceError(LamportError, RuntimeError):
    """The ranks could not set up, or agree on, their shared workspace."""


class SharedMemoryFullError(WorkspaceError):
    """/dev/shm has no room for the workspace."""


class LoaderNotFoundError(WorkspaceError):
    """The Level Zero loader is not installed."""


class NoDeviceError(WorkspaceError):
    """No Intel GPU is visible, or fewer than ranks."""


class DriverTooOldError(WorkspaceError):
    """The GPU driver or its loader lacks something needed."""


class TopologyError(WorkspaceError):
    """Ranks share one device, or use different GPU models."""


class PeerAccessError(WorkspaceError):
    """The driver refuses access from one rank's device to another's."""


class OutOfDeviceMemoryError(WorkspaceError):
    """The GPU has no room for the workspace."""


class HandleExchangeError(WorkspaceError):
    """The system refuses every way of passing an IPC handle to another rank."""


class HandleOpenError(WorkspaceError):
    """The driver would not open a peer's IPC handle."""


class CookieError(WorkspaceError):
    """A peer's handle opened, but what is written through it does not arrive."""


class DriverTimeout(WorkspaceError, TimeoutError):
    """A call into the GPU driver did not return."""


class TensorError(LamportError, ValueError):
    """A tensor cannot be used by this call; nothing was sent and the communicator stays usable."""


class UnsupportedDtypeError(TensorError, TypeError):
    """dtype other than float32, float16, bfloat16."""


class NonContiguousError(TensorError):
    """The tensor's elements are not contiguous in row-major order."""


class TooLargeError(TensorError):
    """The tensor exceeds the communicator's max_bytes."""


class WrongDeviceError(TensorError):
    """The tensor lives on another device than the communicator."""


class QueueError(LamportError, ValueError):
    """A SYCL queue cannot carry collectives, or there is none."""


class MismatchError(LamportError, ValueError):
    """Ranks called with different operations, sizes or dtypes (checked mode, LAMPORT_CHECK=1)."""


class ClosedError(LamportError, RuntimeError):
    """The communicator was closed, or an abandoned collective left it unusable."""


class BootstrapTimeout(LamportError, TimeoutError):
    """A rank did not take part in setting up within the time-out."""


class CollectiveTimeout(LamportError, TimeoutError):
    """A peer did not arrive within the time-out.

    Attributes:
        op: name of the collective.
        peer: rank that was waited for.
        epoch: the workspace's epoch when the call began, the same number on all ranks.
        nbytes: size of this rank's tensor.
    """

    def __init__(self, op: str, peer: int, epoch: int, nbytes: int, detail: str = "") -> None:
        self.op, self.peer, self.epoch, self.nbytes = op, peer, epoch, nbytes
        super().__init__(
            f"{op} of {nbytes} bytes (epoch {epoch}) gave up waiting for rank {peer}{detail}; look at that rank's "
            "log: it has died, is stuck, or made a different sequence of calls (LAMPORT_CHECK=1 tells which)"
        )
