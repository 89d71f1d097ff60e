"""The fused collectives as measured: inputs, the fused call, the separate steps it replaces, the exact result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from lamport_xpu.bench.peers import Peer
from lamport_xpu.bench.units import DType

EPS = 1e-6
LAYERS = 62

Reduce = Callable[[Tensor], Tensor]
"""All-reduce of a tensor that the caller does not need any more; the result may lie in its memory."""
Run = Callable[[], Any]
"""Returns a tensor or a tuple of them."""


@dataclass(frozen=True)
class Model:
    """Sizes of a decode step, before they are split over the ranks."""

    name: str
    hidden: int
    queries: int
    keys: int


MODELS = {
    "minimax-m2": Model("minimax-m2", hidden=3072, queries=6144, keys=1024),
    "inkling": Model("inkling", hidden=4096, queries=4096, keys=1024),
}


@dataclass(frozen=True)
class Place:
    """What a case is built for: this rank of a world, so many tokens of a type on a device."""

    rank: int
    world: int
    tokens: int
    dtype: DType
    device: str


class Case(ABC):
    """One operation of one model at one number of tokens. Every rank can compute every rank's inputs."""

    name: ClassVar[str]
    calls_per_layer: ClassVar[int] = 1
    models: ClassVar[tuple[str, ...]] = tuple(MODELS)

    def __init__(self, model: Model, place: Place) -> None:
        self.model, self.place = model, place

    @abstractmethod
    def fused(self, handle: int) -> Run:
        """One call of torch.ops.lamport_xpu."""

    @abstractmethod
    def separate(self, reduce: Reduce) -> Run:
        """An all-reduce and torch's own operations: what vLLM runs without a fused kernel."""

    @abstractmethod
    def alone(self, handle: int) -> Run:
        """The all-reduce inside, and nothing else: the least that can be hoped for."""

    def added_first(self, handle: int) -> Run | None:
        """Shared and routed partial sums added by a kernel of their own, the rest fused; None where there is one."""
        return None

    def by_peer(self, peer: Peer) -> Run | None:
        """The other library's own fused kernel, if it has one for this."""
        return None

    @abstractmethod
    def exact(self) -> tuple[Tensor, ...]:
        """In float64."""

    @abstractmethod
    def reduced(self) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and type of what the separate steps all-reduce."""

    def random(self, rank: int, index: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * index + rank)
        place = self.place
        return torch.randn(shape, generator=generator).to(place.dtype.torch).to(place.device)

    def inputs(self, index: int, *shape: int) -> list[Tensor]:
        """Every rank's."""
        return [self.random(rank, index, *shape) for rank in range(self.place.world)]


def wrong(results: Tensor | Sequence[Tensor], exact: Sequence[Tensor], place: Place) -> int:
    """Elements farther from the exact value than a few roundings allow: in a sum of `world` numbers of ordinary size, a
    residual or a convolution with it."""
    results = [results] if isinstance(results, Tensor) else results
    limit = (place.world + 3) * place.dtype.unit_roundoff
    return sum(
        int(((r.double() - e).abs() > limit * (e.abs() + place.world + 4)).sum())
        for r, e in zip(results, exact, strict=True)
    )


def _ops() -> Any:
    return torch.ops.lamport_xpu


class QkRmsNorm(Case):
    """Q/K norm of MiniMax: a row of all ranks is normalised, two sums a token travel."""

    name = "qk_rms_norm"
    models = ("minimax-m2",)

    def __init__(self, model: Model, place: Place) -> None:
        super().__init__(model, place)
        self.q, self.k = model.queries // place.world, model.keys // place.world
        self.all = self.inputs(0, place.tokens, self.q + 2 * self.k)
        self.qkv = self.all[place.rank]
        self.q_weight, self.k_weight = self.random(place.rank, 1, self.q), self.random(place.rank, 2, self.k)

    def fused(self, handle: int) -> Run:
        op = _ops().qk_rms_norm.default
        arguments = (self.qkv, self.q_weight, self.k_weight, self.q, self.k, EPS, handle)
        return partial(op, *arguments)

    def separate(self, reduce: Reduce) -> Run:
        qkv, world = self.qkv, self.place.world

        def run() -> tuple[Tensor, ...]:
            q, k, _ = torch.split(qkv, [self.q, self.k, self.k], dim=-1)
            wide_q, wide_k = q.float(), k.float()
            squares = (x.pow(2).mean(dim=-1, keepdim=True) for x in (wide_q, wide_k))
            mean = reduce(torch.cat(tuple(squares), dim=-1)) / world
            q_mean, k_mean = mean.chunk(2, dim=-1)
            wide_q = wide_q * torch.rsqrt(q_mean + EPS) * self.q_weight
            wide_k = wide_k * torch.rsqrt(k_mean + EPS) * self.k_weight
            return wide_q.to(q.dtype), wide_k.to(k.dtype)

        return run

    def alone(self, handle: int) -> Run:
        op, x = _ops().all_reduce.default, torch.zeros(*self.reduced()[0], device=self.place.device)
        return partial(op, x, handle)

    def exact(self) -> tuple[Tensor, ...]:
        results = []
        for columns, weight in (
            (slice(0, self.q), self.q_weight),
            (slice(self.q, self.q + self.k), self.k_weight),
        ):
            rows = [x[:, columns].double() for x in self.all]
            mean = torch.stack([(r * r).mean(1, keepdim=True) for r in rows]).mean(0)
            results.append(rows[self.place.rank] / (mean + EPS).sqrt() * weight.double())
        return tuple(results)

    def reduced(self) -> tuple[tuple[int, ...], torch.dtype]:
        return (self.place.tokens, 2), torch.float32


class AddAllReduce(Case):
    """Routed and shared experts' partial sums of a MoE layer."""

    name = "add_all_reduce"

    def __init__(self, model: Model, place: Place) -> None:
        super().__init__(model, place)
        self.all_routed = self.inputs(0, place.tokens, model.hidden)
        self.all_shared = self.inputs(1, place.tokens, model.hidden)
        self.routed, self.shared = self.all_routed[place.rank], self.all_shared[place.rank]

    def fused(self, handle: int) -> Run:
        op = _ops().add_all_reduce.default
        return partial(op, self.routed, self.shared, handle)

    def separate(self, reduce: Reduce) -> Run:
        return lambda: reduce(self.routed + self.shared)

    def alone(self, handle: int) -> Run:
        op = _ops().all_reduce.default
        return partial(op, self.routed, handle)

    def exact(self) -> tuple[Tensor, ...]:
        # The addition is rounded to the type, in both forms.
        sums = [(r + s).double() for r, s in zip(self.all_routed, self.all_shared, strict=True)]
        return (torch.stack(sums).sum(0),)

    def reduced(self) -> tuple[tuple[int, ...], torch.dtype]:
        return (self.place.tokens, self.model.hidden), self.place.dtype.torch


class AddAllReduceRmsNorm(AddAllReduce):
    """After attention and after the experts: all-reduce, residual, norm. MiniMax-M2 has no shared experts."""

    name = "add_all_reduce_rms_norm"
    calls_per_layer = 2

    def __init__(self, model: Model, place: Place) -> None:
        super().__init__(model, place)
        self.second = None if model.name == "minimax-m2" else self.shared
        self.residual = self.random(99, 2, place.tokens, model.hidden)
        self.weight = self.random(99, 3, model.hidden)

    def fused(self, handle: int) -> Run:
        return partial(self._op(handle), self.routed, self.second)

    def added_first(self, handle: int) -> Run | None:
        op, routed, second = self._op(handle), self.routed, self.second
        return None if second is None else lambda: op(routed + second, None)

    def by_peer(self, peer: Peer) -> Run | None:
        return peer.add_norm(self.routed, self.residual, self.weight) if self.second is None else None

    def _op(self, handle: int) -> Callable[[Tensor, Tensor | None], Any]:
        op, rest = _ops().add_all_reduce_rms_norm.default, (self.residual, self.weight, EPS, False, handle)
        return lambda routed, shared: op(routed, shared, *rest)

    def separate(self, reduce: Reduce) -> Run:
        """The fewest operations that torch offers: an addition and its rms_norm."""
        norm, shape = torch.nn.functional.rms_norm, (self.model.hidden,)

        def run() -> tuple[Tensor, ...]:
            x = self.routed.clone() if self.second is None else self.routed + self.second
            residual = reduce(x) + self.residual
            return norm(residual, shape, self.weight, EPS), residual

        return run

    def exact(self) -> tuple[Tensor, ...]:
        total = (
            super().exact()[0] if self.second is not None else torch.stack([x.double() for x in self.all_routed]).sum(0)
        )
        x = total + self.residual.double()
        return x / ((x * x).mean(1, keepdim=True) + EPS).sqrt() * self.weight.double(), x


class RsSconvAgNorm(AddAllReduceRmsNorm):
    """Inkling's: the convolution of a decode step, each token the fourth or later of a sequence of its own."""

    name = "rs_sconv_ag_norm"
    models = ("inkling",)
    heads, block_size, past = 2, 4, 3

    def __init__(self, model: Model, place: Place) -> None:
        super().__init__(model, place)
        tokens, self.shard = place.tokens, model.hidden // place.world
        width = self.shard // self.heads
        self.conv_weight = self.random(99, 4, model.hidden, 4)
        self.caches = self.inputs(5, tokens, self.heads, self.block_size, width)
        self.cache = self.caches[place.rank].clone()
        on = torch.device(place.device)
        self.positions = torch.full((tokens,), self.past, device=on)
        self.slots = torch.arange(tokens, device=on) * self.block_size + self.past
        self.table = torch.arange(tokens, dtype=torch.int32, device=on).view(tokens, 1)
        self.sequences = torch.arange(tokens, dtype=torch.int32, device=on)

    def _my_weight(self) -> Tensor:
        first = self.place.rank * self.shard
        return self.conv_weight[first : first + self.shard].contiguous()

    def _op(self, handle: int) -> Callable[[Tensor, Tensor | None], Any]:
        op = _ops().rs_sconv_ag_norm.default
        rest = (
            self.residual, self._my_weight(), self.weight, EPS, self.cache, self.positions, self.slots, self.table,
            self.sequences, 0, handle,
        )  # fmt: skip
        return lambda routed, shared: op(routed, shared, *rest)

    def by_peer(self, peer: Peer) -> Run | None:
        return None

    def separate(self, reduce: Reduce) -> Run:
        """An all-reduce instead of reduce-scatter and all-gather, which our peers lack, and all channels on each rank.

        The window is gathered from the cache in two operations; a model's own code needs more.
        """
        norm, shape = torch.nn.functional.rms_norm, (self.model.hidden,)
        tokens = self.place.tokens
        cache = torch.cat([self._flat(c) for c in self.caches], dim=-1).contiguous()  # [tokens, block, hidden]
        weight = self.conv_weight.T.float().contiguous()

        def run() -> tuple[Tensor, ...]:
            x = self.routed.clone() if self.second is None else self.routed + self.second
            reduced = reduce(x)
            cache[:, self.past] = reduced
            window = cache[:, self.past - 3 : self.past + 1].float()
            conv = (window * weight).sum(1) + reduced
            residual = self.residual + conv.to(x.dtype)
            return norm(residual, shape, self.weight, EPS), residual

        assert tokens == cache.shape[0]
        return run

    def _flat(self, cache: Tensor) -> Tensor:
        """[tokens, heads, block, width] to [tokens, block, channels of the shard]."""
        return cache.permute(0, 2, 1, 3).reshape(self.place.tokens, self.block_size, self.shard)

    def exact(self) -> tuple[Tensor, ...]:
        sums = [r if self.second is None else r + s for r, s in zip(self.all_routed, self.all_shared, strict=True)]
        reduced = torch.stack([x.double() for x in sums]).sum(0)
        window = torch.cat([self._flat(c) for c in self.caches], dim=-1).double()
        window[:, self.past] = reduced
        conv = (window[:, self.past - 3 : self.past + 1] * self.conv_weight.T.double()).sum(1) + reduced
        x = self.residual.double() + conv
        return x / ((x * x).mean(1, keepdim=True) + EPS).sqrt() * self.weight.double(), x


CASES: dict[str, type[Case]] = {
    case.name: case for case in (QkRmsNorm, AddAllReduce, AddAllReduceRmsNorm, RsSconvAgNorm)
}
