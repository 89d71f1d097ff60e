"""The fused collectives of a decode step, as methods of Communicator.

Each replaces an all-reduce and the small operations around it by one kernel; what it computes is written in its
header in csrc/device, and reference.py holds the oracles. All check their arguments before anything is sent: a rank
that refuses raises, keeps a usable communicator, and its peers' calls end in a CollectiveTimeout that names it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lamport_xpu.comm.errors import LamportError, TensorError

#: Tokens that qk_rms_norm takes in one call.
MAX_QK_TOKENS = 2048


class FusedCollectives:
    """Mixed into Communicator. All tensors: float32, float16 or bfloat16, of one dtype, on the communicator's device.

    Every method raises, like `all_reduce`: TensorError and its subclasses for tensors that do not fit (nothing was
    sent), CollectiveTimeout for an absent peer, ClosedError.
    """

    _engine: Any
    _library: Callable[[Any, Any], None]
    _check_call: Callable[..., None] | None
    _registered: tuple[int, Callable[[], Any]] | None = None

    @property
    def torch_handle(self) -> int:
        """This communicator's number for torch.ops.lamport_xpu (see torch_ops.py), valid until `close`."""
        if self._registered is None:
            from lamport_xpu.comm import torch_ops

            address = getattr(self._engine, "address", None)
            if address is None:
                raise LamportError(
                    "torch.ops.lamport_xpu does not exist on this device yet; use Communicator's methods"
                )
            self._registered = torch_ops.register(self, address)
        return self._registered[0]

    def _native(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] | None = getattr(self._engine, name, None)
        if found is None:
            raise LamportError(f"{name} does not exist on this device yet; use all_reduce and separate operations")
        return found

    def _forget_handle(self) -> None:
        if self._registered is not None:
            self._registered[1]()

    def add_all_reduce(self, routed: Any, shared: Any, out: Any = None) -> Any:
        """Sum over all ranks of `routed + shared`: the same bits as `all_reduce(routed + shared)`.

        The addition happens on the way out, rounded once to the tensors' dtype.

        Args:
            routed, shared: contiguous, of one shape and dtype; at most `max_bytes`.
            out: where the result goes: `routed`, `shared`, or memory that overlaps neither. By default a new tensor.

        Returns:
            `out`.
        """
        if out is None:
            out = _empty_like(routed, "routed")
        if self._check_call is not None:
            self._check_call("add_all_reduce", routed)
        if not self._native("add_all_reduce")(routed, shared, out):
            out[...] = routed + shared
            self._library(out, out)
        return out

    def qk_rms_norm(
        self,
        qkv: Any,
        q_weight: Any,
        k_weight: Any,
        q_size: int,
        kv_size: int,
        eps: float,
        out: tuple[Any, Any] | None = None,
    ) -> tuple[Any, Any]:
        """RMS normalisation of queries and keys over the heads of all ranks; two sums of squares a token travel.

        `x * rsqrt(S / full + eps) * weight`, rounded once, where S is the fp32 sum of squares over the row of all
        ranks and `full` its length, world_size * q_size or world_size * kv_size: the formula of vLLM's MiniMax Q/K
        norm. The scales are the same bits on every rank.

        Args:
            qkv: [T, q_size + 2 * kv_size], T at most MAX_QK_TOKENS, rows contiguous and any distance apart; holds
                queries, keys and values, of which the values are not looked at.
            q_weight: this rank's weight, [q_size].
            k_weight: [kv_size].
            q_size, kv_size: this rank's columns.
            eps: positive.
            out: (q, k) to write to, [T, q_size] and [T, kv_size]: the parts of `qkv` themselves (in place), or memory
                that overlaps nothing else. By default new tensors.

        Returns:
            (q, k).
        """
        if out is None:
            tokens, columns = _matrix_shape(qkv)
            if q_size < 1 or kv_size < 1 or columns != q_size + 2 * kv_size:
                raise TensorError(
                    f"qkv has {columns} columns and must have q_size + 2 * kv_size, with sizes of at least 1; got "
                    f"q_size {q_size} and kv_size {kv_size}"
                )
            out = _like(qkv, (tokens, q_size)), _like(qkv, (tokens, kv_size))
        q, k = out
        if self._check_call is not None:
            self._check_call("qk_rms_norm", q_weight, 8 * _matrix_shape(qkv)[0])
        self._native("qk_rms_norm")(qkv, q_weight, k_weight, q_size, kv_size, eps, q, k)
        return q, k

    def add_all_reduce_rms_norm(
        self,
        routed: Any,
        shared: Any | None,
        residual: Any,
        weight: Any,
        eps: float,
        gemma: bool = False,
        out: tuple[Any, Any] | None = None,
    ) -> tuple[Any, Any]:
        """All-reduce of `routed + shared`, residual addition and RMS normalisation in one kernel.

        With r the bits that `add_all_reduce` would return and x = r + residual in fp32, `new_residual` is x rounded
        to the dtype, and `normed` is `x * rsqrt(mean(x^2) + eps) * weight` rounded once: vLLM's fused_add_rms_norm,
        which rounds x for the new residual only. One-shot at every size: made for decode.

        Args:
            routed, residual: [..., H], contiguous, of one shape and dtype; at most `max_bytes`, a row at most a slot.
            shared: the same, or None.
            weight: [H].
            eps: positive.
            gemma: scale by 1 + weight, as Gemma's norm does.
            out: (normed, new_residual) to write to. `normed` may be `routed`, `new_residual` may be `residual`; apart
                from that they overlap nothing. By default new tensors.

        Returns:
            (normed, new_residual).
        """
        if out is None:
            out = _empty_like(routed, "routed"), _empty_like(routed, "routed")
        normed, new_residual = out
        if self._check_call is not None:
            self._check_call("add_all_reduce_rms_norm", routed)
        self._native("add_all_reduce_rms_norm")(routed, shared, residual, weight, eps, gemma, normed, new_residual)
        return normed, new_residual

    def rs_sconv_ag_norm(
        self,
        routed: Any,
        shared: Any | None,
        residual: Any,
        conv_weight: Any,
        norm_weight: Any | None,
        eps: float,
        cache: Any,
        positions: Any,
        slot_mapping: Any,
        block_table: Any,
        seq_idx: Any,
        channel_offset: int = 0,
        out: tuple[Any, Any] | None = None,
    ) -> tuple[Any | None, Any]:
        """Reduce-scatter, short causal convolution, all-gather, residual addition and RMS norm: Inkling's collective.

        With r this rank's shard (hidden / world_size channels) of the all-reduce of `routed + shared`: r is put into
        the cache at the token's slot; c is the sum over the sequence's last 4 positions, oldest first, of cached
        value times weight, in fp32; `new_residual` is `residual + (c + r)`, each sum rounded to the dtype, gathered
        from all ranks; `normed` is its RMS norm, rounded once. Semantics of vLLM's models/inkling.

        Args:
            routed, residual: [T, hidden], contiguous; tokens of a sequence in ascending positions. Any T: long calls
                are cut, and the cache carries the state.
            shared: the same, or None.
            conv_weight: [hidden / world_size, 4], this rank's channels.
            norm_weight: [hidden], or None for no norm.
            eps: positive.
            cache: [blocks, heads, block_size, width], last dimension contiguous, same dtype; channel c of the shard
                is at [:, c // n, :, channel_offset + c % n] with n = shard / heads. Updated.
            positions: int64 [T], in the sequence.
            slot_mapping: int64 [T], block * block_size + place; negative for padding, which leaves the cache alone
                and passes its residual on.
            block_table: int32 [sequences, blocks], the block of each block_size positions.
            seq_idx: int32 [T], row of block_table.
            channel_offset: see cache.
            out: (normed, new_residual) to write to. `normed` may be `routed`, `new_residual` may be `residual`; apart
                from that they overlap nothing. By default new tensors.

        Returns:
            (normed, or None without `norm_weight`; new_residual).
        """
        if out is None:
            out = (None if norm_weight is None else _empty_like(routed, "routed")), _empty_like(routed, "routed")
        normed, new_residual = (None if norm_weight is None else out[0]), out[1]
        if self._check_call is not None:
            self._check_call("rs_sconv_ag_norm", routed)
        self._native("rs_sconv_ag_norm")(
            routed, shared, residual, conv_weight, norm_weight, eps, cache, positions, slot_mapping, block_table,
            seq_idx, channel_offset, normed, new_residual,
        )  # fmt: skip
        return normed, new_residual


def _shape(x: Any, name: str) -> tuple[int, ...]:
    if not hasattr(x, "shape"):
        raise TensorError(f"{name} must be a tensor: a torch tensor or a NumPy array")
    return tuple(x.shape)


def _matrix_shape(qkv: Any) -> tuple[int, int]:
    shape = _shape(qkv, "qkv")
    if len(shape) != 2:
        raise TensorError(f"qkv has shape {list(shape)} and must be 2-D")
    return shape[0], shape[1]


def _like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised, contiguous tensor of x's dtype and device."""
    if hasattr(x, "new_empty"):  # torch
        return x.new_empty(shape)
    import numpy as np

    return np.empty(shape, x.dtype)


def _empty_like(x: Any, name: str) -> Any:
    """The same with x's shape."""
    shape = _shape(x, name)
    # For torch half the cost of new_empty, and that of the collective itself on a small tensor.
    return sys.modules["torch"].empty_like(x) if hasattr(x, "new_empty") else _like(x, shape)
