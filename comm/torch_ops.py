"""torch.ops.lamport_xpu: the collectives as torch operators, out of place and in place.

    handle = communicator.torch_handle
    y = torch.ops.lamport_xpu.all_reduce(x, handle)         # torch.ops.lamport_xpu.all_reduce_(x, handle) in place

The operators are C++ (csrc/torch/ops.cpp); this module loads them, keeps their registry of communicators, and tells
torch.compile the shapes of their results, so that they stay in the graph. They compute what the methods of
Communicator do, with one difference: sizes that a method would leave to the library are done by the two-shot
algorithm, as an operator cannot call back into Python. Errors are RuntimeErrors whose text begins with the name of the
class in comm/errors.py.

The out-of-place operators are pure functions of what the ranks hold, so a compiler may merge, drop or move them as long
as it does so on all ranks alike, which it does where all ranks compile the same program.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from lamport_xpu.comm.errors import LamportError

_F = TypeVar("_F", bound=Callable[..., Any])

_NAMES = ("all_reduce", "add_all_reduce", "qk_rms_norm", "add_all_reduce_rms_norm", "rs_sconv_ag_norm")


@functools.cache
def load() -> Any:
    """Loads the operators, once; returns the library.

    Raises:
        LamportError: they were not built; says how to build them.
    """
    import lamport_xpu

    folders = [Path(folder) for folder in lamport_xpu.__path__]
    found = next((path for folder in folders for path in folder.glob("_torch*.so")), None)
    if found is None:
        raise LamportError(
            "torch.ops.lamport_xpu was not built: torch was missing when lamport_xpu was installed; install torch 2.10 "
            "or later first, then pip install --no-build-isolation lamport_xpu again"
        )
    torch.ops.load_library(str(found))  # type: ignore[no-untyped-call]
    library = ctypes.CDLL(str(found))
    library.lamport_register_engine.argtypes = [ctypes.c_void_p]
    library.lamport_register_engine.restype = ctypes.c_int64
    library.lamport_forget_engine.argtypes = [ctypes.c_int64]
    library.lamport_forget_engine.restype = None
    _register_fakes()
    return library


def register(communicator: Any, engine_address: int) -> tuple[int, weakref.finalize[..., Any]]:
    """Puts a communicator into the registry; returns its handle and what removes it again."""
    library = load()
    handle = int(library.lamport_register_engine(engine_address))
    return handle, weakref.finalize(communicator, library.lamport_forget_engine, handle)


def _register_fakes() -> None:
    def fake(name: str) -> Callable[[_F], _F]:
        decorator: Callable[[_F], _F] = torch.library.register_fake(name)
        return decorator

    @fake("lamport_xpu::all_reduce")
    def _(x: Tensor, comm: int) -> Tensor:
        return x.new_empty(x.shape)

    @fake("lamport_xpu::add_all_reduce")
    def _(routed: Tensor, shared: Tensor, comm: int) -> Tensor:
        return routed.new_empty(routed.shape)

    @fake("lamport_xpu::qk_rms_norm")
    def _(
        qkv: Tensor, q_weight: Tensor, k_weight: Tensor, q_size: int, kv_size: int, eps: float, comm: int
    ) -> tuple[Tensor, Tensor]:
        return qkv.new_empty((qkv.shape[0], q_size)), qkv.new_empty((qkv.shape[0], kv_size))

    @fake("lamport_xpu::add_all_reduce_rms_norm")
    def _(
        routed: Tensor, shared: Tensor | None, residual: Tensor, weight: Tensor, eps: float, gemma: bool, comm: int
    ) -> tuple[Tensor, Tensor]:
        return routed.new_empty(routed.shape), routed.new_empty(routed.shape)

    @fake("lamport_xpu::rs_sconv_ag_norm")
    def _(
        routed: Tensor, shared: Tensor | None, residual: Tensor, conv_weight: Tensor, norm_weight: Tensor | None,
        *rest: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        shape = (0,) if norm_weight is None else routed.shape
        return routed.new_empty(shape), routed.new_empty(routed.shape)

    for name in _NAMES:
        fake(f"lamport_xpu::{name}_")(_nothing)


def _nothing(*_: Any, **__: Any) -> None:
    """The result of an in-place operator."""
