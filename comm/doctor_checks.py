"""What the doctor looks at without touching a peer: driver, cards, kernel settings, libraries."""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lamport_xpu.comm.errors import LamportError

Status = Literal["OK", "warn", "FAIL"]

SHM_NEEDED = 64 << 20
PIDFD_OPEN, PIDFD_GETFD = 434, 438  # system call numbers, the same on every architecture


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` says what to do, and is empty exactly when status is OK."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Gpus:
    """What the Level Zero driver told us, for the checks that build on it."""

    devices: list[dict[str, Any]]
    peer_access: list[list[bool]]


def check_level_zero() -> tuple[list[Finding], Gpus]:
    """Loader, drivers, devices and the P2P matrix; stops at the first that is missing."""
    none = Gpus([], [])
    try:
        from lamport_xpu import _level_zero as level_zero
    except ImportError as error:
        reinstall = "pip install --force-reinstall lamport-xpu (Linux on x86-64 only)"
        return [Finding("Level Zero module", "FAIL", f"cannot import: {error}", reinstall)], none
    try:
        findings = [Finding("Level Zero loader", "OK", level_zero.loader_path())]
    except LamportError as error:
        return [_finding_of(error)], none
    try:
        for driver in level_zero.drivers():
            findings.append(_driver_finding(driver))
        devices = level_zero.devices()
        if not devices:
            detail = "the driver lists no GPU"
            findings.append(Finding("GPUs", "FAIL", detail, "check /dev/dri below and ZE_AFFINITY_MASK"))
            return findings, none
        gpus = Gpus(devices, level_zero.peer_access())
    except LamportError as error:
        return [*findings, _finding_of(error)], none
    findings += [*_device_findings(gpus.devices), *_peer_findings(gpus)]
    return findings, gpus


def _finding_of(error: LamportError) -> Finding:
    """The native module's texts read 'cause. Remedy.': the remedy starts behind the first full stop."""
    cause, _, remedy = str(error).partition(". ")
    names = {
        "LoaderNotFoundError": "Level Zero loader",
        "DriverTooOldError": "GPU driver",
        "NoDeviceError": "GPUs",
    }
    return Finding(names.get(type(error).__name__, "Level Zero"), "FAIL", cause, remedy or "see docs/intel.md")


def _driver_finding(driver: dict[str, Any]) -> Finding:
    version = driver["version"]
    text = f"{version >> 24}.{version >> 16 & 0xFF}.{version & 0xFFFF}, Level Zero {driver['api_version']}"
    if driver["ipc_memory"]:
        return Finding("GPU driver", "OK", text)
    return Finding("GPU driver", "FAIL", f"{text}: cannot share memory between processes", "update libze-intel-gpu1")


def _device_findings(devices: list[dict[str, Any]]) -> Iterator[Finding]:
    for index, device in enumerate(devices):
        tile = "" if device["subdevice_id"] is None else f" tile {device['subdevice_id']}"
        memory = f"{device['memory_bytes'] / (1 << 30):.1f} GiB"
        detail = f"{device['name']}{tile} at {device['pci']}, {memory}"
        if device["integrated"]:
            remedy = "hide it: ZE_AFFINITY_MASK with the indices of the other GPUs"
            yield Finding(f"GPU {index}", "warn", f"{detail}, integrated", remedy)
        else:
            yield Finding(f"GPU {index}", "OK", detail)
        yield from _large_bar_finding(index, device)
    models = {(device["vendor_id"], device["device_id"]) for device in devices}
    if len(models) > 1:
        remedy = "select equal ones with ZE_AFFINITY_MASK: results are bit-identical on one model only"
        yield Finding("GPU models", "warn", f"{len(models)} different models", remedy)
    if len(devices) == 1:
        remedy = "one GPU a rank is needed: check ZE_AFFINITY_MASK, and --device /dev/dri in a container"
        yield Finding("GPU count", "warn", "only one GPU is visible", remedy)


def _large_bar_finding(index: int, device: dict[str, Any]) -> Iterator[Finding]:
    """Peers reach this card's memory through its PCI window, which must span all of it."""
    resource = Path("/sys/bus/pci/devices") / device["pci"] / "resource"
    if device["pci"] == "unknown" or device["integrated"] or not resource.exists():
        return
    ranges = [line.split() for line in resource.read_text().splitlines()]
    window = max((int(last, 16) - int(first, 16) + 1 for first, last, _ in ranges if int(last, 16)), default=0)
    if window < device["memory_bytes"] // 2:
        detail = f"PCI window of {window >> 20} MiB for {device['memory_bytes'] >> 20} MiB of memory"
        remedy = "enable Resizable BAR and Above 4G Decoding in the firmware set-up"
        yield Finding(f"GPU {index} BAR", "FAIL", detail, remedy)


def _peer_findings(gpus: Gpus) -> Iterator[Finding]:
    count = len(gpus.devices)
    if count < 2:
        return
    refused = [(a, b) for a in range(count) for b in range(count) if a != b and not gpus.peer_access[a][b]]
    if refused:
        pairs = ", ".join(f"{a}->{b}" for a, b in refused)
        remedy = (
            "enable Resizable BAR, use a kernel with PCIe peer-to-peer (CONFIG_PCI_P2PDMA), and keep IOMMU "
            "or ACS from redirecting traffic between the slots (iommu=pt)"
        )
        yield Finding("P2P access", "FAIL", f"refused by the driver for {pairs}", remedy)
    else:
        yield Finding("P2P access", "OK", f"granted between all {count} GPUs")


def check_device_nodes(gpus_found: bool) -> Finding:
    """Whether this user may open the GPUs' device files."""
    nodes = sorted(Path("/dev/dri").glob("renderD*")) if Path("/dev/dri").is_dir() else []
    if not nodes:
        status: Status = "warn" if gpus_found else "FAIL"
        remedy = "load the i915 or xe kernel driver; in a container: docker run --device /dev/dri"
        return Finding("/dev/dri", status, "no renderD* device file", remedy)
    closed = [node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        remedy = "sudo usermod -aG render $USER, log in again; in a container: --group-add with its number"
        return Finding("/dev/dri", "FAIL", f"no permission for {', '.join(closed)}", remedy)
    return Finding("/dev/dri", "OK", ", ".join(node.name for node in nodes))


def check_ptrace() -> Finding:
    """Only IPC mode pidfd (and opaque, on drivers that do the same inside) depends on this."""
    scope_file = Path("/proc/sys/kernel/yama/ptrace_scope")
    scope = int(scope_file.read_text()) if scope_file.exists() else 0
    refusal = _pidfd_refusal()
    detail = f"Yama ptrace_scope {scope}" if scope_file.exists() else "Yama not active"
    detail += f", pidfd_getfd {refusal or 'allowed'}"
    if scope == 0 and not refusal:
        return Finding("ptrace", "OK", detail)
    remedy = "nothing to do: IPC mode socket, the default, needs none of this; only LAMPORT_IPC=pidfd would"
    return Finding("ptrace", "warn", detail, remedy)


def _pidfd_refusal() -> str:
    """Why the kernel or a seccomp profile refuses pidfd_getfd even on ourselves; empty when it does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    process = libc.syscall(PIDFD_OPEN, os.getpid(), 0)
    if process < 0:
        return f"not available ({errno.errorcode.get(ctypes.get_errno(), '?')})"
    with open("/dev/null") as probe:
        copy = libc.syscall(PIDFD_GETFD, process, probe.fileno(), 0)
        error = ctypes.get_errno()
    os.close(process)
    if copy < 0:
        return f"refused ({errno.errorcode.get(error, '?')})"
    os.close(copy)
    return ""


def check_shm() -> Finding:
    """The host target and several runtimes keep their shared memory in /dev/shm."""
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("/dev/shm", "FAIL", str(error), "mount -t tmpfs tmpfs /dev/shm")
    free = status.f_bavail * status.f_frsize
    detail = f"{free >> 20} MiB free of {status.f_blocks * status.f_frsize >> 20} MiB"
    if free < SHM_NEEDED:
        return Finding("/dev/shm", "warn", detail, "docker run --shm-size=1g, or remove stale files in /dev/shm")
    return Finding("/dev/shm", "OK", detail)


def check_oneccl() -> Finding:
    """The vendor's library carries the sizes above our largest threshold."""
    for name in ("oneccl", "oneccl-bind-pt"):
        if version := _version(name):
            return Finding("oneCCL", "OK", f"{name} {version}")
    for folder in (os.environ.get("CCL_ROOT", ""), "/opt/intel/oneapi/ccl/latest"):
        if folder and (Path(folder) / "lib/libccl.so.1").exists():
            return Finding("oneCCL", "OK", folder)
    return Finding("oneCCL", "warn", "not found", "pip install oneccl: needed only for comparison and large tensors")


def check_torch() -> Finding:
    """Reads the version only: importing torch would take longer than the rest of the doctor."""
    version = _version("torch")
    if version is None:
        remedy = "install the XPU build of PyTorch if you want to pass torch tensors"
        return Finding("torch.xpu", "warn", "torch is not installed", remedy)
    if "xpu" in version:
        return Finding("torch.xpu", "OK", f"torch {version}")
    return Finding("torch.xpu", "warn", f"torch {version} is not an XPU build", "install PyTorch's xpu wheel")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_environment() -> Finding:
    """Settings that change what the lines above mean."""
    prefixes = ("LAMPORT_", "ZE_", "ONEAPI_DEVICE_SELECTOR", "CCL_ZE_IPC_EXCHANGE")
    seen = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(prefixes)]
    return Finding("environment", "OK", " ".join(seen) or "nothing set")


def machine_findings(with_gpus: bool) -> tuple[list[Finding], Gpus]:
    """All checks of this process, in the order a reader should fix them."""
    version = f"{_version('lamport-xpu') or 'not installed'}, Python {sys.version.split()[0]}"
    findings = [Finding("lamport-xpu", "OK", version)]
    gpus = Gpus([], [])
    if with_gpus:
        gpu_findings, gpus = check_level_zero()
        findings += [*gpu_findings, check_device_nodes(bool(gpus.devices))]
    findings += [check_ptrace(), check_shm(), check_oneccl(), check_torch(), check_environment()]
    return findings, gpus
