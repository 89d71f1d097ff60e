"""The settings of oneCCL that people try, each of which a sweep runs in its own mpirun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ALGORITHMS = ("direct", "rabenseifner", "nreduce", "ring", "double_tree", "recursive_doubling", "2d", "topo")


@dataclass(frozen=True)
class Variant:
    """A name for tables and the environment that makes it."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cached: bool = False
    needs_intel_gpu: bool = False


def _gpu(**settings: str) -> Variant:
    name = " ".join(f"{key}={value}" for key, value in settings.items())
    return Variant(name, {f"CCL_{k}": v for k, v in settings.items()}, needs_intel_gpu=True)


ONECCL_VARIANTS: tuple[Variant, ...] = (
    Variant("default"),
    *(Variant(name, {"CCL_ALLREDUCE": name}) for name in ALGORITHMS),
    # The fairest at 8 bytes: no copy of the operation's set-up, and MPI's own synchronous collective
    # underneath.
    Variant("direct sync cached", {"CCL_ALLREDUCE": "direct", "CCL_ATL_SYNC_COLL": "1"}, cached=True),
    Variant("ring cached", {"CCL_ALLREDUCE": "ring"}, cached=True),
    _gpu(TOPO_FABRIC_VERTEX_CONNECTION_CHECK="0"),
    _gpu(SYCL_ALLREDUCE_TMP_BUF="1"),
    _gpu(ALLREDUCE_SMALL_THRESHOLD="0"),
    *(_gpu(ZE_IPC_EXCHANGE=how) for how in ("pidfd", "drmfd", "sockets")),
    *(_gpu(SYCL_ALLREDUCE_LL=how) for how in ("ring", "twoshots", "oneshot")),
    _gpu(SYCL_ALLREDUCE_LL="oneshot", SYCL_ALLREDUCE_ONESHOT_THRESHOLD="16384"),
    _gpu(SYCL_ALLREDUCE_ARC="1"),
    _gpu(ENABLE_SYCL_KERNELS="0"),
)


def intel_gpu_missing() -> str | None:
    """Why the GPU variants cannot run here, or None when an Intel GPU is there and usable from torch."""
    if not any(Path("/dev/dri").glob("renderD*")):
        return "needs an Intel GPU (no render node in /dev/dri)"
    import torch

    if not torch.xpu.is_available():
        return "needs an Intel GPU (a render node is there, but torch.xpu sees no device)"
    return None


def clean_environment(variant: Variant) -> dict[str, str]:
    """This process' environment with the variant's settings and no other choice of oneCCL algorithm."""
    chosen = {k for v in ONECCL_VARIANTS for k in v.environment}
    return {k: v for k, v in os.environ.items() if k not in chosen} | dict(variant.environment)
