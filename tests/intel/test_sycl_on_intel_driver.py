"""Leg c, the kernels' half: Intel's own driver, as Battlemage cards without hardware. Nothing executes."""

from __future__ import annotations

import importlib.util

import pytest

from tests.intel import adapters, fetch


@pytest.fixture(autouse=True)
def needs_driver_and_sycl() -> None:
    if not fetch.STAMP.exists():
        pytest.skip("Intel's driver has not been fetched: `make test-intel` does it")
    if importlib.util.find_spec("lamport_xpu._sycl") is None:
        pytest.skip("lamport_xpu was built without its SYCL target (the build log says what to install)")
    if importlib.util.find_spec("dpctl") is None:
        pytest.skip("dpctl is not installed: pip install dpctl==0.22.1")


@pytest.mark.timeout(900)  # the driver compiles every kernel, a minute on a quiet machine
@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("adapter", list(adapters.ADAPTERS))
def test_modules_launches_and_graphs_are_accepted(adapter: str, cards: int) -> None:
    done = adapters.run(["-m", "tests.intel.sycl_probe", str(cards)], adapter, cards)
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("accepted") == cards


@pytest.mark.parametrize("adapter", list(adapters.ADAPTERS))
def test_a_launch_costs_little_more_than_an_empty_one(adapter: str) -> None:
    script = str(fetch.REPOSITORY / "bench" / "launch_cost.py")
    for _ in range(3):  # a busy machine can spoil a measurement, not make one look better
        done = adapters.run([script, "--no-check", "--limit", "1.3"], adapter)
        print(done.stdout)
        if done.returncode == 0:
            return
    pytest.fail(done.stdout)
