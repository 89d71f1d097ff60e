"""rs_sconv_ag_norm over processes against the plain NumPy oracle, the cache's state carried from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lamport_xpu.comm import CollectiveTimeout, Communicator, errors, reference
from tests.payloads import DTYPES, as_bits, as_tensor, payload
from tests.ranks import run_ranks
from tests.test_fused import EPS, _rows, _same, _tensor

#: Tokens of each call, as (sequence, number of new tokens): prefill, decode, both mixed, new sequences later.
CALLS = {
    "one token": [[(0, 1)]] * 6,
    "two tokens": [[(0, 2)], [(0, 1), (1, 1)], [(1, 2)], [(0, 1), (1, 1)]],
    "seven tokens": [[(0, 3), (1, 4)], [(0, 1), (1, 1), (2, 5)], [(2, 7)], [(0, 2), (1, 2), (2, 3)]],
    "thirty-three tokens": [[(0, 33)], [(0, 1), (1, 16), (2, 16)], [(s, 3) for s in range(11)], [(1, 33)]],
}


class Paged:
    """One rank's cache of several streams, with blocks handed out in no particular order."""

    def __init__(self, dtype: str, shard: int, heads: int, block_size: int, blocks: int) -> None:
        self.width = shard // heads
        width = 3 * self.width  # other streams left and right of ours
        empty = np.full((blocks, heads, block_size, width), 0x3C00, np.uint32 if dtype == "float32" else np.uint16)
        self.cache = as_tensor(empty, dtype)
        self.before = empty.copy()
        self.offset, self.block_size = self.width, block_size
        self.free = list(np.random.default_rng(5).permutation(blocks))
        self.table = np.full((12, 40), -1, np.int32)
        self.length = dict.fromkeys(range(12), 0)

    def tokens(self, call: list[tuple[int, int]]) -> list[tuple[int, int] | None]:
        """(sequence, position) of the call's tokens, with a padding token at the end."""
        found: list[tuple[int, int] | None] = []
        for sequence, count in call:
            for _ in range(count):
                found.append((sequence, self.length[sequence]))
                self.length[sequence] += 1
        return [*found, None]

    def arguments(self, tokens: list[tuple[int, int] | None]) -> tuple[torch.Tensor, ...]:
        """cache, positions, slot_mapping, block_table, seq_idx."""
        slots = []
        for token in tokens:
            if token is None:
                slots.append(-1)
                continue
            sequence, position = token
            block, place = divmod(position, self.block_size)
            if self.table[sequence, block] < 0:
                self.table[sequence, block] = self.free.pop()
            slots.append(int(self.table[sequence, block]) * self.block_size + place)
        return (
            self.cache,
            torch.tensor([token[1] if token else 0 for token in tokens], dtype=torch.int64),
            torch.tensor(slots, dtype=torch.int64),
            torch.from_numpy(self.table),
            torch.tensor([token[0] if token else 0 for token in tokens], dtype=torch.int32),
        )

    def check(self, oracle: reference.ShortConv, rank: int, shard: int) -> None:
        """Our stream holds the reduced rows, the others what they held before."""
        cache = as_bits(self.cache).reshape(self.before.shape)
        expected = self.before.copy()
        for (sequence, position), row in oracle.history.items():
            block, place = divmod(position, self.block_size)
            mine = row[rank * shard : (rank + 1) * shard].reshape(-1, self.width)
            expected[self.table[sequence, block], :, place, self.offset : self.offset + self.width] = mine
        np.testing.assert_array_equal(cache, expected)


def _run(
    comm: Communicator,
    dtype: str,
    calls: list[list[tuple[int, int]]],
    hidden: int,
    heads: int = 2,
    block_size: int = 4,
    special: bool = False,
    seed: int = 0,
) -> float:
    """Checks the bits of every call, out of place and in place; the norm's error against float64 in ulps."""
    world, rank = comm.world_size, comm.rank
    shard = hidden // world
    conv_weight = _rows(dtype, hidden, 4, 99, seed)
    norm_weight = payload(dtype, hidden, 99, seed + 1)
    paged = [Paged(dtype, shard, heads, block_size, 160) for _ in range(2)]
    oracle = reference.ShortConv(conv_weight, norm_weight, EPS, dtype, world)
    cw, nw = _tensor(conv_weight[rank * shard : (rank + 1) * shard], dtype), _tensor(norm_weight, dtype)
    worst = 0.0
    for number, call in enumerate(calls):
        tokens = paged[0].tokens(call)
        paged[1].tokens(call)
        index = seed + 10 * number
        routed = [_rows(dtype, len(tokens), hidden, r, index + 2, special) for r in range(world)]
        shared = (
            [_rows(dtype, len(tokens), hidden, r, index + 3, special) for r in range(world)] if number % 2 else None
        )
        residual = _rows(dtype, len(tokens), hidden, 99, index + 4, special)
        normed, new_residual = oracle(routed, shared, residual, tokens)
        r, x = _tensor(routed[rank], dtype), _tensor(residual, dtype)
        s = None if shared is None else _tensor(shared[rank], dtype)
        got = comm.rs_sconv_ag_norm(r, s, x, cw, nw, EPS, *paged[0].arguments(tokens), paged[0].offset)
        _same(got[1], new_residual, f"new_residual of call {number}")
        _same(got[0], normed, f"normed of call {number}")
        _same(r, routed[rank], "the input must stay as it was")
        paged[0].check(oracle, rank, shard)
        arguments = (*paged[1].arguments(tokens), paged[1].offset)
        if number % 3 == 2:
            assert comm.rs_sconv_ag_norm(r, s, x, cw, None, EPS, *arguments, out=(None, x)) == (None, x)
        else:
            comm.rs_sconv_ag_norm(r, s, x, cw, nw, EPS, *arguments, out=(r, x))
            _same(r, normed, "normed in place")
        _same(x, new_residual, "new_residual in place")
        paged[1].check(oracle, rank, shard)
        if not special:
            wide = reference.to_float32(new_residual.reshape(-1), dtype).astype(np.float64).reshape(residual.shape)
            weight = reference.to_float32(norm_weight, dtype).astype(np.float64)
            exact = wide / np.sqrt((wide * wide).mean(1) + EPS)[:, None] * weight
            worst = max(worst, float(reference.ulps(normed, exact, dtype).max()))
    return worst


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("calls", CALLS)
def test_equals_oracle(world: int, calls: str) -> None:
    def body(comm: Communicator) -> float:
        worst = 0.0
        for seed, dtype in enumerate(DTYPES):
            # Heads that fill packets, heads that do not, a shard that is no whole number of packets.
            for hidden, heads, block_size in ((world * 64, 2, 4), (world * 60, 6, 4), (world * 13, 1, 3)):
                worst = max(worst, _run(comm, dtype, CALLS[calls], hidden, heads, block_size, seed=1000 * seed))
        return worst

    errors_found = run_ranks(world, body, seconds=250)
    assert max(errors_found) <= 1.0, errors_found


def test_inklings_own_size() -> None:
    def body(comm: Communicator) -> float:
        return _run(comm, "bfloat16", CALLS["thirty-three tokens"], 4096, heads=4)

    assert max(run_ranks(2, body)) <= 1.0
    assert max(run_ranks(4, body)) <= 1.0


def test_special_values() -> None:
    def body(comm: Communicator) -> None:
        for dtype in DTYPES:
            _run(comm, dtype, CALLS["seven tokens"], 96, special=True)

    run_ranks(3, body)


def test_a_call_longer_than_a_slice_is_cut() -> None:
    """More rows than fit a generation, one sequence across the cut."""
    from lamport_xpu.comm import policy

    rows = policy.CHUNKS["cpu"].slice_bytes // (4096 // 2 * 4) + 5

    def body(comm: Communicator) -> float:
        return _run(comm, "float32", [[(0, rows)], [(0, 2)]], 4096, heads=4)

    assert max(run_ranks(2, body)) <= 1.0


def test_mixed_with_all_reduce() -> None:
    def body(comm: Communicator) -> None:
        for seed in range(20):
            _run(comm, DTYPES[seed % 3], CALLS["seven tokens"], 96, seed=seed)
            x = [payload("float16", 5000 + seed, rank, seed) for rank in range(4)]
            _same(comm.all_reduce(_tensor(x[comm.rank], "float16")), reference.all_reduce(x, "float16"))

    run_ranks(4, body)


@pytest.mark.parametrize("wrong", ["tap order", "state", "skip", "padding"])
def test_negative_controls(wrong: str) -> None:
    """An oracle with one thing wrong must disagree."""

    class Wrong(reference.ShortConv):
        def __call__(self, routed: Any, shared: Any, residual: Any, tokens: Any) -> Any:
            if wrong == "state":
                self.history.update({key: np.zeros_like(row) for key, row in self.history.items()})
            if wrong == "padding":
                tokens = [token or (11, 0) for token in tokens]
            return super().__call__(routed, shared, residual, tokens)

        def _row(self, reduced: NDArray[Any], residual: NDArray[Any], token: tuple[int, int] | None) -> NDArray[Any]:
            row = super()._row(reduced, residual, token)
            return residual if wrong == "skip" else row

    def body(comm: Communicator) -> bool:
        weight = _rows("bfloat16", 64, 4, 99, 0)
        paged = Paged("bfloat16", 32, 2, 4, 160)
        oracle = Wrong(weight[:, ::-1] if wrong == "tap order" else weight, weight[:, 0].copy(), EPS, "bfloat16", 2)
        cw, nw = _tensor(weight[32 * comm.rank : 32 * comm.rank + 32], "bfloat16"), _tensor(weight[:, 0], "bfloat16")
        differs = False
        for number in range(3):
            tokens = paged.tokens([(0, 1)])
            routed = [_rows("bfloat16", 2, 64, rank, number) for rank in range(2)]
            residual = _rows("bfloat16", 2, 64, 99, number)
            _, expected = oracle(routed, None, residual, tokens)
            r, x = _tensor(routed[comm.rank], "bfloat16"), _tensor(residual, "bfloat16")
            _, got = comm.rs_sconv_ag_norm(r, None, x, cw, nw, EPS, *paged.arguments(tokens), paged.offset)
            differs |= bool((as_bits(got) != expected.reshape(-1)).any())
        return differs

    assert all(run_ranks(2, body))


def test_bad_input() -> None:
    def body(comm: Communicator) -> None:
        paged = Paged("float32", 8, 2, 4, 20)
        tokens = paged.tokens([(0, 2)])
        cache, positions, slots, table, sequences = paged.arguments(tokens)
        x = torch.ones(3, 16)
        good: dict[str, Any] = {
            "routed": x, "shared": None, "residual": torch.ones(3, 16), "conv_weight": torch.ones(8, 4),
            "norm_weight": torch.ones(16), "eps": 1e-6, "cache": cache, "positions": positions,
            "slot_mapping": slots, "block_table": table, "seq_idx": sequences, "channel_offset": 4,
        }  # fmt: skip
        comm.rs_sconv_ag_norm(**good)
        later = torch.tensor([0, 1, 0])
        for kind, words, changes in (
            (errors.TensorError, "tokens, hidden", {"routed": torch.ones(16)}),
            (errors.TensorError, "multiple of the world", {k: torch.ones(3, 15) for k in ("routed", "residual")}),
            (errors.TensorError, "residual has shape", {"residual": torch.ones(3, 8)}),
            (errors.TensorError, "conv_weight", {"conv_weight": torch.ones(8, 3)}),
            (errors.TensorError, "conv_weight", {"conv_weight": torch.ones(16, 4)}),
            (errors.TensorError, "norm_weight", {"norm_weight": torch.ones(8)}),
            (errors.TensorError, "dtype", {"conv_weight": torch.ones(8, 4).half()}),
            (errors.TensorError, "dtype", {"cache": cache.half()}),
            (errors.TensorError, "eps", {"eps": 0}),
            (errors.TensorError, "positions must be int64", {"positions": positions.int()}),
            (errors.TensorError, "slot_mapping must be", {"slot_mapping": slots[:2]}),
            (errors.TensorError, "seq_idx must be int32", {"seq_idx": sequences.long()}),
            (errors.TensorError, "block_table", {"block_table": table.long()}),
            (errors.TensorError, "cache has shape", {"cache": cache[0]}),
            (errors.TensorError, "heads that divide", {"cache": torch.ones(20, 3, 4, 12)}),
            (errors.TensorError, "channels 9", {"channel_offset": 9}),
            (errors.TensorError, "channels -1", {"channel_offset": -1}),
            (errors.NonContiguousError, "cache", {"cache": torch.ones(20, 2, 12, 4).transpose(2, 3)}),
            (errors.TensorError, "slot of token 1", {"slot_mapping": torch.tensor([0, 80, -1])}),
            (errors.TensorError, "seq_idx of token 0", {"seq_idx": torch.tensor([12, 0, 0], dtype=torch.int32)}),
            (errors.TensorError, "must ascend", {"positions": torch.tensor([1, 1, 0])}),
            (errors.TensorError, "names a block", {"positions": torch.tensor([20, 21, 0])}),
            (errors.TensorError, "new_residual overlaps routed", {"out": (torch.ones(3, 16), x)}),
            (errors.TensorError, "normed overlaps residual", {"residual": x, "out": (x, torch.ones(3, 16))}),
        ):
            with pytest.raises(kind, match=words):
                comm.rs_sconv_ag_norm(**{**good, **changes})
            assert (comm.all_reduce(np.ones(5, np.float32)) == 2).all()
        empty = {k: x[:0] for k in ("routed", "residual")} | {"positions": later[:0], "slot_mapping": later[:0]}
        assert comm.rs_sconv_ag_norm(**{**good, **empty, "seq_idx": sequences[:0]})[1].shape == (0, 16)
        if comm.rank == 0:
            with pytest.raises(CollectiveTimeout, match=r"rs_sconv_ag_norm .*rank 1"):
                comm.rs_sconv_ag_norm(**good)

    run_ranks(2, body, timeout=0.5)
