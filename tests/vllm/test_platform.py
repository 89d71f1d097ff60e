"""Plugins, declined configurations, and bring-up without an engine."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import lamport_xpu.integrations.vllm as entry
from lamport_xpu.comm import workspace
from lamport_xpu.integrations.vllm import bring_up, choose, settings
from lamport_xpu.integrations.vllm.unsupported import unsupported
from tests.ranks import run_processes

pytest.importorskip("vllm", reason="not installed here; these tests run by: make test-vllm")
from vllm.config import ParallelConfig


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPORT_VLLM", "1")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def test_platform_plugin_stands_for_the_platform_found() -> None:
    assert entry.platform_plugin() == "lamport_xpu.integrations.vllm.cpu_platform.LamportCpuPlatform"


def test_plugins_do_nothing_unless_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    before = type(current_platform)
    for value in ("0", "", "true"):
        monkeypatch.setenv("LAMPORT_VLLM", value)
        assert entry.platform_plugin() is None
        entry.general_plugin()
        assert type(current_platform) is before


def test_general_plugin_adapts_any_platform_with_a_stock_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    class OtherPlatform(CpuPlatform):
        pass

    other = OtherPlatform()
    monkeypatch.setattr(platforms, "_current_platform", other)
    for _ in range(2):
        entry.general_plugin()
        assert type(other).__name__ == "LamportOtherPlatform"
    assert isinstance(other, OtherPlatform)
    assert other.get_device_communicator_cls().endswith(".LamportCpuCommunicator")
    assert other.use_custom_op_collectives()


def test_general_plugin_leaves_another_communicator_alone(
    monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    class OtherPlatform(CpuPlatform):
        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return "other.Communicator"

    other = OtherPlatform()
    monkeypatch.setattr(platforms, "_current_platform", other)
    entry.general_plugin()
    assert type(other) is OtherPlatform
    assert "brings a communicator of its own, other.Communicator" in log.text


def test_platform_plugin_makes_way_for_another(monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    def plugin(name: str, answer: Callable[[], str | None]) -> Any:
        return SimpleNamespace(name=name, load=lambda: answer)

    def fails() -> str:
        raise RuntimeError

    plugins = [plugin("broken", fails), plugin("absent", lambda: None)]
    monkeypatch.setattr(choose, "entry_points", lambda group: plugins)
    assert entry.platform_plugin() is not None
    plugins.append(plugin("other", lambda: "other.Platform"))
    assert entry.platform_plugin() is None
    assert "platform plugin other is active" in log.text


def test_untested_vllm_is_declined(monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("vllm.version.__version__", "0.33.0")
    assert entry.platform_plugin() is None
    entry.general_plugin()
    assert "vLLM 0.33.0 was not tested; install vLLM 0.32.x" in log.text
    monkeypatch.setattr("vllm.version.__version__", "0.32.1+xpu")
    assert entry.platform_plugin() is not None


def _config(**parallel: Any) -> Any:
    return SimpleNamespace(parallel_config=ParallelConfig(tensor_parallel_size=2, **parallel))


def test_plain_tensor_parallelism_is_supported() -> None:
    assert unsupported(_config()) is None


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline parallelism"),
        ({"data_parallel_size": 2}, "data parallelism"),
        ({"enable_expert_parallel": True}, "expert parallelism"),
        ({"nnodes": 2, "distributed_executor_backend": "mp"}, "several nodes"),
        ({"enable_dbo": True}, "dual-batch overlap"),
    ],
)
def test_declined_configurations(setting: dict[str, Any], reason: str) -> None:
    assert reason in (unsupported(_config(**setting)) or "")


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "INT4", "quantised all-reduce"),
        ("VLLM_BATCH_INVARIANT", "1", "VLLM_BATCH_INVARIANT"),
    ],
)
def test_declined_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str) -> None:
    monkeypatch.setenv(variable, value)
    assert reason in (unsupported(_config()) or "")


def test_unknown_fusion_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPORT_VLLM_FUSE", "qk_norm,qk-norm")
    with pytest.raises(ValueError, match="lists qk-norm; it takes qk_norm, add_norm, shared, or none"):
        settings.fusions()


def _bring_up(rank: int, world: int, meeting: Path, declined: str | None = None, timeout: float = 20.0) -> Any:
    store = dist.FileStore(str(meeting), world)  # type: ignore[attr-defined]
    group = bring_up.Group("tp:0", rank, list(range(world)), "cpu", store)
    started = bring_up.bring_up(group, declined, timeout, frozenset(settings.FUSIONS))
    if started is None:
        return None
    comm, fusions = started
    total = comm.all_reduce(torch.full((4,), float(rank)))
    comm.close()
    return float(total[0]), sorted(fusions)


@pytest.fixture
def meeting(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_first_verdict_stays_with_a_tcp_store() -> None:
    """The engines of these tests meet in a file store; across start-up methods vLLM uses this one too."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    assert store.compare_set("verdict", "", "first") == b"first"
    assert store.compare_set("verdict", "", "second") == b"first"


@pytest.mark.parametrize("world", [2, 4])
def test_all_ranks_come_up(world: int, meeting: Path) -> None:
    everyone = run_processes(world, lambda rank: _bring_up(rank, world, meeting), seconds=60)
    assert everyone == [(sum(range(world)), ["add_norm", "qk_norm", "shared"])] * world


def test_one_rank_that_declines_is_enough(meeting: Path) -> None:
    everyone = run_processes(3, lambda rank: _bring_up(rank, 3, meeting, "no" if rank == 1 else None), seconds=60)
    assert everyone == [None] * 3


def test_ranks_on_two_hosts_stay_with_stock(meeting: Path) -> None:
    def main(rank: int) -> Any:
        workspace.host_identity = lambda: f"host {rank}"
        return _bring_up(rank, 2, meeting)

    assert run_processes(2, main, seconds=60) == [None, None]


def test_fusion_that_one_rank_cannot_do_is_off_on_all(meeting: Path) -> None:
    def main(rank: int) -> Any:
        if rank == 1:
            bring_up.probe._PROBES["add_norm"] = lambda comm, device: False
        else:
            bring_up.probe._PROBES["add_norm"] = lambda comm, device: True
        return _bring_up(rank, 2, meeting)

    assert run_processes(2, main, seconds=60) == [(1.0, ["qk_norm", "shared"])] * 2


@pytest.mark.parametrize("late", [3.0, None], ids=["late", "never"])
def test_absent_rank_costs_a_bounded_wait(meeting: Path, late: float | None) -> None:
    """A rank that comes when the others have given up must not be the only one to start."""

    def main(rank: int) -> Any:
        bring_up.PATIENCE = 1.0
        if rank == 1:
            if late is None:
                return None
            time.sleep(late)
        started = time.monotonic()
        result = _bring_up(rank, 2, meeting)
        return result, time.monotonic() - started < 10

    first, second = run_processes(2, main, seconds=60)
    assert first == (None, True)
    assert second == (None if late is None else (None, True))


def _communicator(rank: int, world: int, meeting: Path, kind: str) -> Any:
    """One of the classes over a gloo group, with a configuration as small as it can be."""
    from vllm.distributed.device_communicators import base_device_communicator  # noqa: F401 - vLLM's import order

    from lamport_xpu.integrations.vllm import communicator

    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world)
    config = SimpleNamespace(
        parallel_config=ParallelConfig(tensor_parallel_size=world),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=8),
        speculative_config=None,
        model_config=SimpleNamespace(get_hidden_size=lambda: 64, dtype=torch.float16),
    )
    communicator.get_current_vllm_config_or_none = lambda: config
    group, cpu = dist.group.WORLD, torch.device("cpu")
    return getattr(communicator, kind)(cpu_group=group, device_group=group, device=cpu, unique_name="tp:0")


def test_xpu_class_routes_counts_and_captures(meeting: Path) -> None:
    """The class used on XPU, over CPU memory: the same mixin on XpuCommunicator."""

    def main(rank: int) -> Any:
        from vllm.distributed.device_communicators.xpu_communicator import XpuCommunicator

        ours = _communicator(rank, 2, meeting, "LamportXpuCommunicator")
        assert isinstance(ours, XpuCommunicator)
        assert ours.max_bytes == 8 * 64 * 2
        x = torch.full((8, 64), rank + 1.0, dtype=torch.float16)
        with ours.ca_comm.capture():
            results = [ours.all_reduce(x)]
        results += [
            ours.all_reduce(y)
            for y in (
                torch.full((16, 64), rank + 1.0, dtype=torch.float16),
                torch.full((4,), rank + 1.0, dtype=torch.float64),
                torch.full((8, 8), rank + 1.0).t()[:4],
                torch.full((0,), 1.0),
            )
        ]
        assert all(bool((result == 3).all()) for result in results)
        assert bool((x == rank + 1).all())
        calls = dict(ours.counters.calls)
        ours.destroy()
        assert ours.ca_comm is None
        assert bool((ours.all_reduce(x) == 3).all())
        dist.destroy_process_group()
        return {reason: count for (_, reason), count in calls.items()}

    expected = {"lamport": 1, "larger than 1024 bytes": 1, "dtype torch.float64": 1, "not contiguous": 1, "empty": 1}
    assert run_processes(2, main, seconds=60) == [expected] * 2


def test_xpu_platform_names_our_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the XPU kernels, which cannot be installed here: names and inheritance only."""
    for name in ("", "._C", "._moe_C", "._xpu_C"):
        monkeypatch.setitem(sys.modules, f"vllm_xpu_kernels{name}", ModuleType(f"vllm_xpu_kernels{name}"))
    from vllm.platforms.interface import PlatformEnum

    from lamport_xpu.integrations.vllm.xpu_platform import LamportXpuPlatform

    assert LamportXpuPlatform._enum == PlatformEnum.XPU
    assert LamportXpuPlatform.get_device_communicator_cls().endswith(".LamportXpuCommunicator")
