"""Where the SYCL CPU device is, and how ranks must be started to use it."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

OPENCL = Path(sysconfig.get_path("data")) / "lib" / "libintelocl.so"


def missing() -> str | None:
    """Why SYCL kernels cannot run on the CPU here, or None."""
    if importlib.util.find_spec("lamport_xpu._sycl") is None:
        return "lamport_xpu was built without its SYCL target (the build log says what to install)"
    if not OPENCL.exists() and "OCL_ICD_FILENAMES" not in os.environ:
        return "no SYCL CPU device: pip install intel-opencl-rt==2026.1.2"
    return None


def one_worker() -> dict[str, str]:
    """Environment of a rank: one worker thread, because more would wait for each other's cores."""
    icd = os.environ.get("OCL_ICD_FILENAMES", str(OPENCL))
    return {"CL_CONFIG_CPU_TBB_NUM_WORKERS": "1", "DPCPP_CPU_NUM_CUS": "1", "OCL_ICD_FILENAMES": icd}
