"""Run a SYCL program on Intel's driver with null hardware, through each of the runtime's Level Zero adapters.

    python -m tests.intel.adapters [--cards N] -- program arguments...

The newer adapter (v2, the default) makes every allocation resident, which null hardware refuses as uninitialised. A
loader in front of the real one says yes to those two calls and leaves all others as they are.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.intel import null_hardware
from tests.intel.fetch import CACHE, REPOSITORY, FetchImpossible, fetch

SHIM = CACHE / "shim"
ADAPTERS = {"v2": "1", "v1": "0"}
TIMEOUT_S = 900
_SONAME, _RENAMED = b"libze_loader.so.1\0", b"libze_loadrl.so.1\0"
_SOURCE = """
#include <stddef.h>
int zeContextMakeMemoryResident(void* c, void* d, void* p, size_t n) { (void)c, (void)d, (void)p, (void)n; return 0; }
int zeContextEvictMemory(void* c, void* d, void* p, size_t n) { (void)c, (void)d, (void)p, (void)n; return 0; }
"""


def build_shim() -> Path:
    """Folder with the loader in front; the real one lies beside it, renamed so that both can be loaded."""
    library = SHIM / "libze_loader.so.1"
    if library.exists() and library.stat().st_mtime >= null_hardware.LOADER.stat().st_mtime:
        return SHIM
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FetchImpossible("no C compiler for the loader shim")
    SHIM.mkdir(parents=True, exist_ok=True)
    real = SHIM / _RENAMED.rstrip(b"\0").decode()
    real.write_bytes(null_hardware.LOADER.read_bytes().replace(_SONAME, _RENAMED))
    source = SHIM / "shim.c"
    source.write_text(_SOURCE)
    part = SHIM / f"part.{os.getpid()}"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-Wl,--no-as-needed", f"-Wl,-rpath,{SHIM}"]
    subprocess.run([compiler, *flags, str(source), str(real), "-o", str(part)], check=True, timeout=TIMEOUT_S)
    part.replace(library)
    return SHIM


def command(argv: list[str]) -> list[str]:
    line = null_hardware.command(argv)
    at = line.index("--library-path") + 1
    line[at] = f"{build_shim()}:{line[at]}"
    return line


def environment(adapter: str, cards: int = 1) -> dict[str, str]:
    settings = {"ONEAPI_DEVICE_SELECTOR": "level_zero:*", "SYCL_UR_USE_LEVEL_ZERO_V2": ADAPTERS[adapter]}
    return null_hardware.environment(cards) | settings


def run(argv: list[str], adapter: str, cards: int = 1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command([sys.executable, *argv]),
        env=environment(adapter, cards),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a Python script and its arguments")
    arguments = parser.parse_args()
    program = [word for word in arguments.program if word != "--"]
    if not program:
        parser.error("which program?")
    try:
        fetch()
        worst = 0
        for adapter in ADAPTERS:
            done = run(program, adapter, arguments.cards)
            print(done.stdout, end="")
            worst = worst or done.returncode
        return worst
    except FetchImpossible as error:
        print(f"Intel's driver is not available here: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
