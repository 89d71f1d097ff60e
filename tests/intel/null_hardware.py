"""Run a program on Intel's own driver as a Battlemage that has no hardware behind it.

    python -m tests.intel.null_hardware [--cards N] [--validate] -- program arguments...

The driver accepts contexts, allocations, IPC calls, modules and launches as on a card, but nothing executes:
device memory cannot be read, and zeMemOpenIpcHandle answers pointer 0x1. The program runs under the C library
of the fetched packages, because the driver was built against it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.intel.fetch import ROOT, FetchImpossible, fetch

LIB = ROOT / "usr/lib/x86_64-linux-gnu"
LOADER = LIB / "libze_loader.so.1"
#: The tests' fixture: (argv, cards=, validate=, env=) -> a running process.
Launch = Callable[..., "subprocess.Popen[str]"]

DYNAMIC_LINKER = ROOT / "usr/lib64/ld-linux-x86-64.so.2"


def environment(cards: int = 1, validate: bool = False) -> dict[str, str]:
    """What makes the driver believe in `cards` Battlemage cards; `validate` adds the loader's own checks."""
    settings = {
        "NEOReadDebugKeys": "1",
        "ProductFamilyOverride": "bmg",
        "HardwareInfoOverride": "5x4x8",
        "SetCommandStreamReceiver": "5",  # 5: a receiver that writes no commands anywhere
        "UseAubStream": "0",
        "UseBindlessMode": "0",
        "UseExternalAllocatorForSshAndDsh": "0",
        "ZE_ENABLE_ALT_DRIVERS": str(LIB / "libze_intel_gpu.so.1"),
        "LAMPORT_ZE_LOADER": str(LOADER),
    }
    if cards > 1:
        settings |= {"CreateMultipleRootDevices": str(cards), "ForceZeDeviceCanAccessPerReturnValue": "1"}
    if validate:
        # Not ZE_ENABLE_HANDLE_LIFETIME: it refuses every append to an immediate command list (loader 1.32).
        settings |= {
            "ZE_ENABLE_VALIDATION_LAYER": "1",
            "ZE_ENABLE_PARAMETER_VALIDATION": "1",
            "ZEL_ENABLE_BASIC_LEAK_CHECKER": "1",
        }
    return os.environ | settings


def command(argv: list[str], extra_libraries: tuple[Path, ...] = ()) -> list[str]:
    """`argv` started through the fetched dynamic linker; the venv's and the system's libraries come last."""
    program = shutil.which(argv[0]) or argv[0]
    folders = [LIB, *extra_libraries, Path(sys.prefix) / "lib", Path("/usr/lib/x86_64-linux-gnu")]
    return [str(DYNAMIC_LINKER), "--library-path", ":".join(map(str, folders)), program, *argv[1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--validate", action="store_true", help="let the loader check parameters, and leaks at exit")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = [word for word in arguments.program if word != "--"]
    if not program:
        parser.error("which program?")
    try:
        fetch()
    except FetchImpossible as error:
        print(f"Intel's driver is not available here: {error}", file=sys.stderr)
        return 1
    line = command(program)
    os.execve(line[0], line, environment(arguments.cards, arguments.validate))


if __name__ == "__main__":
    sys.exit(main())
