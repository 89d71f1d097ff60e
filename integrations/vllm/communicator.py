"""The swap-in communicators: one mixin on vLLM's two, which differ only in their device.

Eligible tensors of `tp:*` groups go to lamport_xpu, everything else to the stock class. What decides is the same on all
ranks (dtype, size, layout of the same program's tensors), so ranks never part ways. Results are new tensors, as vLLM's
custom operator demands; the stock CPU all-reduce works in place and gets a copy.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_default_store
from vllm import envs
from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.distributed.device_communicators.xpu_communicator import XpuCommunicator

from lamport_xpu.comm.communicator import DEFAULT_MAX_BYTES, Communicator
from lamport_xpu.comm.fused import MAX_QK_TOKENS
from lamport_xpu.integrations.vllm import ops as ops  # compiled graphs name its operators
from lamport_xpu.integrations.vllm import qk_norm, settings, unsupported
from lamport_xpu.integrations.vllm.bring_up import Group, bring_up
from lamport_xpu.integrations.vllm.counters import HERE, Counters
from lamport_xpu.integrations.vllm.fallback_norm import fused_add_rms_norm

logger = logging.getLogger("vllm.lamport_xpu")

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class LamportCommunicator:
    """Mixed in front of a stock device communicator.

    Attributes:
        lamport: the communicator, or None while vLLM's own is in use.
        fusions: names in settings.FUSIONS that are on, on all ranks alike.
        counters: calls by operation and destination.
        max_bytes: largest tensor taken.
    """

    ca_comm: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lamport: Communicator | None = None
        self.fusions: frozenset[str] = frozenset()
        self.max_bytes = 0
        self.counters = Counters()
        name = self.unique_name  # type: ignore[attr-defined]
        if name.split(":")[0] == "tp" and self.world_size > 1:  # type: ignore[attr-defined]
            self._bring_up(name)

    def _bring_up(self, name: str) -> None:
        rank, ranks = self.rank_in_group, self.ranks  # type: ignore[attr-defined]
        config = get_current_vllm_config_or_none()
        declined = "vLLM gave no configuration" if config is None else unsupported.unsupported(config)
        if config is not None and config.model_config is not None:
            hidden = config.model_config.get_hidden_size()
            decode = unsupported.decode_tokens(config) * hidden * config.model_config.dtype.itemsize
            self.max_bytes = min(decode, DEFAULT_MAX_BYTES)
        elif declined is None:
            declined = "vLLM gave no model configuration"
        group = Group(name, rank, ranks, self.device.type, _get_default_store())  # type: ignore[attr-defined]
        started = bring_up(group, declined, float(envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS), settings.fusions())
        if started is not None:
            self.lamport, self.fusions = started
            self.ca_comm = self
            if rank == 0:
                logger.info(
                    "lamport-xpu: on for %s: %d ranks on %s, tensors up to %d bytes, fusions: %s",
                    name,
                    len(ranks),
                    group.device,
                    self.max_bytes,
                    ", ".join(sorted(self.fusions)) or "none",
                )
            self.counters.report_at_exit(f"rank {rank} of {len(ranks)}, {name}")
            if "qk_norm" in self.fusions:
                qk_norm.install()

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks; a new tensor, [...] like `input_`."""
        if self.lamport is None:
            return self._stock_all_reduce(input_)
        reason = self._unfit(input_)
        if reason is None:
            self.counters.calls["all_reduce", HERE] += 1
            return self.lamport.all_reduce(input_)
        self.counters.calls["all_reduce", reason] += 1
        return self._stock_all_reduce(input_)

    def add_all_reduce(self, routed: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """`all_reduce(routed + shared)`; both of one shape and dtype."""
        reason = self._unfit(routed, shared) if "shared" in self.fusions else "switched off"
        self.counters.calls["add_all_reduce", reason or HERE] += 1
        if reason is None:
            return self.lamport.add_all_reduce(routed, shared)  # type: ignore[union-attr]
        return self.all_reduce(routed + shared)

    def add_all_reduce_rms_norm(
        self,
        routed: torch.Tensor,
        shared: torch.Tensor | None,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(normed, new residual) of `all_reduce(routed + shared)`; [T, H], `weight` [H], `shared` may be None."""
        others = (residual, weight) if shared is None else (residual, weight, shared)
        reason = self._unfit(routed, *others) if "add_norm" in self.fusions else "switched off"
        self.counters.calls["add_all_reduce_rms_norm", reason or HERE] += 1
        if reason is None:
            return self.lamport.add_all_reduce_rms_norm(routed, shared, residual, weight, eps)  # type: ignore[union-attr]
        reduced = self.all_reduce(routed if shared is None else routed + shared)
        return fused_add_rms_norm(reduced, residual, weight, eps)

    def qk_rms_norm(
        self, qkv: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, q_size: int, kv_size: int, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(q [T, q_size], k [T, kv_size]) normalised over all ranks' heads, or None if the tensors do not fit."""
        reason = None
        if "qk_norm" not in self.fusions:
            reason = "switched off"
        elif not 0 < qkv.shape[0] <= MAX_QK_TOKENS:
            reason = f"not 1 to {MAX_QK_TOKENS} tokens"
        elif qkv.dtype not in _DTYPES or q_weight.dtype != qkv.dtype or k_weight.dtype != qkv.dtype:
            reason = f"dtypes {qkv.dtype} and {q_weight.dtype}"
        elif qkv.stride(1) != 1 or qkv.shape[1] != q_size + 2 * kv_size:
            reason = "layout"
        elif qkv.nbytes > DEFAULT_MAX_BYTES:
            reason = f"larger than {DEFAULT_MAX_BYTES} bytes"
        self.counters.calls["qk_rms_norm", reason or HERE] += 1
        if reason is not None:
            return None
        return self.lamport.qk_rms_norm(qkv, q_weight, k_weight, q_size, kv_size, eps)  # type: ignore[union-attr]

    def capture(self) -> contextlib.AbstractContextManager[None]:
        """vLLM enters `ca_comm.capture()` around graph capture; our collectives are plain launches and need nothing."""
        return contextlib.nullcontext()

    def destroy(self) -> None:
        if self.lamport is not None:
            self.lamport.close()
            self.lamport, self.fusions = None, frozenset()
            self.ca_comm = None
        super().destroy()  # type: ignore[misc]

    def _unfit(self, x: torch.Tensor, *others: torch.Tensor) -> str | None:
        """Why these tensors are not for us, or None. `others` must have x's dtype."""
        if x.dtype not in _DTYPES:
            return f"dtype {x.dtype}"
        if x.nbytes > self.max_bytes:
            return f"larger than {self.max_bytes} bytes"
        if x.nbytes == 0:
            return "empty"
        if not x.is_contiguous():
            return "not contiguous"
        for other in others:
            if other.dtype != x.dtype or not other.is_contiguous():
                return "mixed dtypes or layouts"
        return None

    def _stock_all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return super().all_reduce(input_)  # type: ignore[misc]


class LamportXpuCommunicator(LamportCommunicator, XpuCommunicator):
    pass


class LamportCpuCommunicator(LamportCommunicator, CpuCommunicator):
    def _stock_all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return super()._stock_all_reduce(input_.clone())
