"""Communicator(device="xpu") whole: Level Zero bring-up on the test driver, kernels on the SYCL CPU device.

Not a run on an Intel GPU.
"""

from __future__ import annotations

import pytest

from tests.level_zero_host.driver_build import RunRanks
from tests.sycl.environment import missing, one_worker

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_results_and_a_peer_that_never_calls(run_ranks: RunRanks, world_size: int) -> None:
    for report in run_ranks(world_size, one_worker(), script="communicator_rank", limit=200):
        assert report["error"] is None, report
        assert set(report["errors"]) == {"qk_rms_norm", "add_all_reduce_rms_norm", "rs_sconv_ag_norm"}
        if report["rank"] != 0:
            assert report["timeout"] == 0


def test_lost_writes_fail_on_all_ranks(run_ranks: RunRanks) -> None:
    """Negative control: with peers' writes lost, no communicator comes up, on any rank."""
    env = one_worker() | {"LAMPORT_TEST_ZE_FAULT": "cookie_lost"}
    for report in run_ranks(2, env, script="communicator_rank", limit=200):
        assert report["error"] in ("CookieError", "HandleExchangeError"), report
