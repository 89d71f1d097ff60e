"""Bad input to the fused collectives: a typed error, nothing sent, the communicator usable; peers are told by time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lamport_xpu.comm import CollectiveTimeout, Communicator, errors, policy
from tests.ranks import run_ranks
from tests.test_errors import CudaImpostor

F16 = torch.float16


def _still_works(comm: Communicator) -> None:
    assert (comm.all_reduce(np.ones(5, np.float32)) == comm.world_size).all()


def _all_refused(comm: Communicator, call: Callable[..., Any], good: dict[str, Any], bad: list[Any]) -> None:
    """Each of `bad` is (error, words of the message, {argument: value}) on top of the good arguments."""
    call(**good)
    for kind, words, changes in bad:
        with pytest.raises(kind, match=words):
            call(**{**good, **changes})
        _still_works(comm)
    call(**good)


def test_add_all_reduce() -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(17)
        good = {"routed": torch.ones(8), "shared": torch.ones(8)}
        _all_refused(
            comm,
            comm.add_all_reduce,
            good,
            [
                (errors.UnsupportedDtypeError, "routed", {"routed": torch.ones(8, dtype=torch.float64)}),
                (errors.UnsupportedDtypeError, "float32", {k: torch.ones(8, dtype=torch.int32) for k in good}),
                (errors.TensorError, "dtype", {"shared": torch.ones(8, dtype=F16)}),
                (errors.TensorError, "shape", {"shared": torch.ones(9)}),
                (errors.TensorError, "shape", {"shared": torch.ones(4, 2)}),
                (errors.TensorError, "shape", {"out": torch.ones(7)}),
                (errors.NonContiguousError, "shared", {"shared": torch.ones(8, 2)[:, 0]}),
                (errors.TooLargeError, "max_bytes", {k: torch.ones(2000) for k in good}),
                (errors.WrongDeviceError, "shared", {"shared": CudaImpostor()}),
                (errors.TensorError, "meta", {"shared": torch.ones(8, device="meta")}),
                (errors.TensorError, "overlap", {"routed": x[:8], "out": x[1:9]}),
                (errors.TensorError, "overlap", {"shared": x[:8], "out": x[7:15]}),
                (errors.TensorError, "tensor", {"routed": "text"}),
            ],
        )

    run_ranks(2, body, max_bytes=4096)


def test_qk_rms_norm() -> None:
    def body(comm: Communicator) -> None:
        qkv, memory = torch.ones(3, 12, dtype=F16), torch.ones(60, dtype=F16)
        w = torch.ones(16, dtype=F16)
        q, k = torch.ones(3, 6, dtype=F16), torch.ones(3, 3, dtype=F16)
        good = {"qkv": qkv, "q_weight": w[:6], "k_weight": w[:3], "q_size": 6, "kv_size": 3, "eps": 1e-6}
        many, block = torch.ones(2049, 12, dtype=F16), memory[:18].view(3, 6)
        _all_refused(
            comm,
            comm.qk_rms_norm,
            good,
            [
                (errors.TensorError, "columns", {"q_size": 7}),
                (errors.TensorError, "columns", {"kv_size": 4, "out": (q, k)}),
                (errors.TensorError, "sizes", {"q_size": 12, "kv_size": 0}),
                (errors.TensorError, "positive", {"q_size": 12, "kv_size": 0, "out": (q, k)}),
                (errors.TensorError, "sizes", {"q_size": -6, "kv_size": 9}),
                (errors.TensorError, "2-D", {"qkv": torch.ones(12, dtype=F16)}),
                (errors.TensorError, "q_weight", {"q_weight": w[:7]}),
                (errors.TensorError, "k_weight", {"k_weight": w[:2]}),
                (errors.TensorError, "k_weight", {"k_weight": w[:3].reshape(1, 3)}),
                (errors.TensorError, "q_weight.*dtype", {"q_weight": torch.ones(6)}),
                (errors.NonContiguousError, "q_weight", {"q_weight": w[:12:2]}),
                (errors.TensorError, "k_weight.*meta", {"k_weight": torch.ones(3, device="meta", dtype=F16)}),
                (errors.NonContiguousError, "rows", {"qkv": torch.ones(12, 3, dtype=F16).T}),
                (errors.NonContiguousError, "rows", {"qkv": torch.ones(1, 12, dtype=F16).expand(3, 12)}),
                (errors.TensorError, "eps", {"eps": 0.0}),
                (errors.TensorError, "eps", {"eps": -1e-6}),
                (errors.TensorError, "eps", {"eps": float("nan")}),
                (errors.TooLargeError, "2049 tokens", {"qkv": many}),
                (errors.UnsupportedDtypeError, "qkv", {"qkv": qkv.double()}),
                (errors.TensorError, "q has shape", {"out": (q[:2], k)}),
                (errors.TensorError, "k has shape", {"out": (q, q)}),
                (errors.TensorError, "overlaps qkv", {"out": (qkv[:, 1:7], k)}),
                (errors.TensorError, "overlaps qkv", {"out": (q, qkv[:, :3])}),
                (errors.TensorError, "overlaps k", {"out": (block, memory[17:26].view(3, 3))}),
                (
                    errors.TensorError,
                    "q overlaps q_weight",
                    {"q_weight": memory[:6], "out": (block, k)},
                ),
                (errors.TensorError, "tensor", {"qkv": "text"}),
            ],
        )
        assert comm.qk_rms_norm(**{**good, "qkv": qkv[:0]})[0].shape == (0, 6)

    run_ranks(2, body)


def test_weight_on_another_device() -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(1, 24)
        with pytest.raises(errors.WrongDeviceError, match="q_weight"):
            comm.qk_rms_norm(x, CudaImpostor(), torch.ones(8), 8, 8, 1e-6)
        with pytest.raises(errors.WrongDeviceError, match="weight"):
            comm.add_all_reduce_rms_norm(torch.ones(1, 8), None, torch.ones(1, 8), CudaImpostor(), 1e-6)
        _still_works(comm)

    run_ranks(2, body)


def test_add_all_reduce_rms_norm() -> None:
    def body(comm: Communicator) -> None:
        x, r, s = (torch.ones(3, 8) for _ in range(3))
        memory = torch.ones(64)
        block = memory[:24].view(3, 8)
        good = {"routed": r, "shared": s, "residual": x, "weight": torch.ones(8), "eps": 1e-6}
        _all_refused(
            comm,
            comm.add_all_reduce_rms_norm,
            good,
            [
                (errors.TensorError, "shape", {"shared": torch.ones(3, 9)}),
                (errors.TensorError, "shape", {"residual": torch.ones(2, 8)}),
                (errors.TensorError, "weight", {"weight": torch.ones(3)}),
                (errors.TensorError, "weight.*dtype", {"weight": torch.ones(8, dtype=F16)}),
                (errors.TensorError, "residual.*dtype", {"residual": x.half()}),
                (errors.NonContiguousError, "routed", {"routed": torch.ones(8, 3).T}),
                (errors.TensorError, "eps", {"eps": 0.0}),
                (errors.TensorError, "eps", {"eps": float("inf")}),
                (errors.TooLargeError, "max_bytes", {k: torch.ones(3000, 8) for k in ("routed", "shared", "residual")}),
                (errors.TensorError, "normed overlaps residual", {"out": (x, torch.ones(3, 8))}),
                (errors.TensorError, "normed overlaps shared", {"out": (s, torch.ones(3, 8))}),
                (errors.TensorError, "new_residual overlaps routed", {"out": (torch.ones(3, 8), r)}),
                (
                    errors.TensorError,
                    "new_residual overlaps normed",
                    {"out": (block, memory[20:44].view(3, 8))},
                ),
                (
                    errors.TensorError,
                    "overlap in part",
                    {"routed": block, "out": (memory[4:28].view(3, 8), x)},
                ),
            ],
        )
        assert comm.add_all_reduce_rms_norm(r[:0], None, x[:0], torch.ones(8), 1e-6)[0].shape == (0, 8)

    run_ranks(2, body, max_bytes=90_000)


def test_a_row_larger_than_a_slot() -> None:
    def body(comm: Communicator) -> None:
        x = torch.ones(1, policy.CHUNKS["cpu"].slot_bytes // 4 + 1)
        with pytest.raises(errors.TooLargeError, match="a row"):
            comm.add_all_reduce_rms_norm(x, None, x.clone(), x[0].clone(), 1e-6)
        _still_works(comm)

    run_ranks(2, body)


@pytest.mark.parametrize("op", ["add_all_reduce", "qk_rms_norm", "add_all_reduce_rms_norm"])
def test_a_rank_that_refuses_is_named_to_its_peer(op: str) -> None:
    """Rank 1's arguments are bad; rank 0's call must end, name rank 1 and the operation."""

    def body(comm: Communicator) -> None:
        x, y = torch.ones(2, 24), torch.ones(2, 8)
        w = torch.ones(8 + comm.rank)
        calls = {
            "add_all_reduce": lambda: comm.add_all_reduce(x, torch.ones(2, 24 + comm.rank)),
            "qk_rms_norm": lambda: comm.qk_rms_norm(x, w, torch.ones(8), 8, 8, 1e-6),
            "add_all_reduce_rms_norm": lambda: comm.add_all_reduce_rms_norm(y, None, y.clone(), w, 1e-6),
        }
        if comm.rank == 1:
            with pytest.raises(errors.TensorError):
                calls[op]()
            return
        began = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=f"{op} .*rank 1") as caught:
            calls[op]()
        assert (caught.value.op, caught.value.peer) == (op, 1)
        assert time.monotonic() - began < 5
        with pytest.raises(errors.ClosedError, match="abandoned"):
            calls[op]()

    run_ranks(2, body, timeout=0.5)


def test_closed() -> None:
    def body(comm: Communicator) -> None:
        comm.close()
        with pytest.raises(errors.ClosedError, match="closed"):
            comm.add_all_reduce(torch.ones(3), torch.ones(3))

    run_ranks(2, body)


def test_checked_mode_detects_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPORT_CHECK", "1")

    def body(comm: Communicator) -> None:
        x, w = torch.ones(2 + comm.rank, 24), torch.ones(8)
        with pytest.raises(errors.MismatchError, match=r"rank 0: qk_rms_norm float32 16 B.*rank 1: .* 24 B"):
            comm.qk_rms_norm(x, w, w, 8, 8, 1e-6)
        with pytest.raises(errors.MismatchError, match=r"rank 0: all_reduce.*rank 1: add_all_reduce"):
            (comm.add_all_reduce if comm.rank else comm.all_reduce)(*[torch.ones(8) for _ in range(1 + comm.rank)])
        y = x[:1].contiguous()
        assert comm.qk_rms_norm(y, w, w, 8, 8, 1e-6)[0].shape == (1, 8)
        _still_works(comm)

    run_ranks(2, body)
