"""The CCL_* environment: how one oneCCL differs from another, and what is set when nobody else did.

Idle peers must not disturb the one being timed, and oneCCL has worker threads. Measured with two ranks on
two cores: an idle worker sleeps (no CPU time in 2 s), but a busy one that shares a core with a waiting rank
costs 20-30 ms a call. Under Intel MPI with a core a rank, oneCCL notices and runs without workers, in the
caller's thread; under other launchers, or when the benchmark does the pinning, it does not notice and puts
its worker on another rank's core. The default below makes the fast case the only one: every library gets
one core a rank. Whoever sets it keeps their value.
"""

from __future__ import annotations

import os

HOST_DEFAULTS = {
    "CCL_WORKER_OFFLOAD": "0",
    # Otherwise every rank greets every launch with half a dozen warnings about the line above.
    "CCL_LOG_LEVEL": "error",
}
_NOT_ALGORITHMIC = {"CCL_ROOT", "CCL_LOG_LEVEL", "CCL_CONFIGURATION", "CCL_CONFIGURATION_PATH"}


def set_host_defaults() -> None:
    """Before oneCCL is loaded."""
    for name, value in HOST_DEFAULTS.items():
        os.environ.setdefault(name, value)


def ccl_variant(cached: bool = False) -> str:
    """The settings that differ from the benchmark's own, for example "ALLREDUCE=ring cached"."""
    settings = [
        f"{name.removeprefix('CCL_')}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("CCL_") and name not in _NOT_ALGORITHMIC and HOST_DEFAULTS.get(name) != value
    ]
    return " ".join(settings + ["cached"] * cached)
