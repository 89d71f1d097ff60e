"""Communication layer: `Communicator` and its errors."""

from lamport_xpu.comm.communicator import Communicator
from lamport_xpu.comm.errors import CollectiveTimeout, LamportError

__all__ = ["CollectiveTimeout", "Communicator", "LamportError"]
