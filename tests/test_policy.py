from __future__ import annotations

import pytest

from lamport_xpu.comm import policy
from lamport_xpu.comm.policy import Thresholds


def test_built_in_until_tuned_then_per_device_world_and_dtype() -> None:
    before = policy.load("cpu", 4, "float16")
    assert before == policy.default("cpu", 4)
    tuned = Thresholds(123, 456)
    path = policy.store("cpu", 4, "float16", tuned)
    assert path == policy.cache_file()
    assert policy.load("cpu", 4, "float16") == tuned
    assert policy.load("cpu", 2, "float16") == policy.default("cpu", 2)
    assert policy.load("cpu", 4, "float32") == before
    policy.store("cpu", 4, "float32", Thresholds(7))
    assert policy.load("cpu", 4, "float16") == tuned


@pytest.mark.parametrize("text", ["{", "[]", '{"cpu/2/float32": {"two_shot_max_bytes": 1}}'])
def test_a_damaged_cache_says_what_to_do(text: str) -> None:
    policy.cache_file().parent.mkdir(parents=True, exist_ok=True)
    policy.cache_file().write_text(text)
    with pytest.raises(ValueError, match="delete it or run the benchmark with --tune"):
        policy.load("cpu", 2, "float32")


def test_unknown_dtype() -> None:
    with pytest.raises(ValueError, match="float32, float16, bfloat16"):
        policy.load("cpu", 2, "int8")
