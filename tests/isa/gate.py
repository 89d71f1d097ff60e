"""ISA gate: compiles every shipped kernel for Intel's GPUs with Intel's offline compiler and reads the machine code.

No GPU is needed, and none is replaced: the gate shows that the spin reads memory and not a cache, that a publish
writes and does not read, and how many instructions a packet costs. What these do on a card, only a card tells.

    python -m tests.isa.gate                  check, and write docs/isa.md
    python -m tests.isa.gate --update-budget  take the present counts as the budget
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tomllib

from tests.intel import fetch
from tests.isa.checks import Figures, Memory, check, figures, rounding
from tests.isa.listing import Kernel, parse

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]

DEVICES = ("bmg-g21", "bmg-g31", "pvc")
PLAIN = ("all_reduce_one_shot", "all_reduce_two_shot")
#: The fused collectives are large; for them fewer listings are read. bmg-g31 has the all-reduce's code of bmg-g21, too.
FUSED_DEVICES = ("bmg-g21", "pvc")
FUSED_WORLDS = (2, 4, 8)
BUDGET = HERE / "budget.toml"
TABLE = REPOSITORY / "docs" / "isa.md"
CONTROLS = HERE / "controls"
KERNEL_NAME = re.compile(r"lamport_(?P<collective>\w+)_(?P<dtype>f32|f16|bf16)_w(?P<world>\d)$")
TIMEOUT_S = 300


class NoListing(RuntimeError):
    """The compiler refuses a kernel, or does it twice."""


class GateImpossible(RuntimeError):
    """Something the gate needs is not on this machine; the text says what."""


@dataclass(frozen=True)
class Compiler:
    """ocloc, started with the C library it was built against."""

    root: Path

    @classmethod
    def find(cls) -> Compiler:
        try:
            return cls(fetch.fetch())
        except fetch.FetchImpossible as error:
            raise GateImpossible(f"Intel's offline compiler cannot be had here: {error}") from error

    def listing(self, spirv: Path, device: str, options: str = "") -> tuple[Kernel, Memory]:
        libraries = self.root / "usr/lib/x86_64-linux-gnu"
        ocloc = next(iter(sorted((self.root / "usr/bin").glob("ocloc*"))), None)
        if ocloc is None:
            raise GateImpossible(f"no ocloc under {self.root}")
        loader = [libraries / "ld-linux-x86-64.so.2", "--library-path", f"{libraries}:/usr/lib/x86_64-linux-gnu"]
        with tempfile.TemporaryDirectory() as folder:
            command = [*loader, ocloc, "compile", "-file", spirv, "-spirv_input", "-device", device, "-out_dir", folder]
            command += ["-options", options] if options else []
            environment = os.environ | {"IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": folder}
            done = subprocess.run(
                [str(word) for word in command],
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise NoListing(f"ocloc failed on {spirv.name} for {device}:\n{done.stdout}{done.stderr}")
            listings = [parse(path.read_text()) for path in Path(folder).glob("*_entry_*.asm")]
            kernels = [k for k in listings if not k.name.startswith("Intel_Symbol_Table")]
            if len(kernels) != 1:  # the compiler starts over when registers run out
                raise NoListing(f"{len(kernels)} listings, spills in the first")
            (zeinfo,) = Path(folder).glob("*.zeinfo")
            return kernels[0], _memory(zeinfo.read_text())


def _memory(zeinfo: str) -> Memory:
    def largest(key: str) -> int:
        return max((int(n) for n in re.findall(rf"^\s+{key}:\s+(\d+)", zeinfo, re.MULTILINE)), default=0)

    scratch = re.findall(r"- type:\s+scratch\n\s+usage:\s+\w+\n\s+size:\s+(\d+)", zeinfo)
    return Memory(largest("private_size"), largest("spill_size"), max(map(int, scratch), default=0))


def _examined(path: Path) -> bool:
    match = KERNEL_NAME.match(path.stem)
    assert match is not None
    return match["collective"] in PLAIN or int(match["world"]) in FUSED_WORLDS


def devices_for(path: Path) -> tuple[str, ...]:
    match = KERNEL_NAME.match(path.stem)
    assert match is not None
    return DEVICES if match["collective"] in PLAIN else FUSED_DEVICES


def shipped_kernels(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.glob("*.spv")) if KERNEL_NAME.match(path.stem) and _examined(path)]
    if not found:
        raise GateImpossible(f"no kernels in {folder}: build the package with the SYCL wheels installed")
    return found


def compile_controls(folder: Path) -> list[Path]:
    """Kernels that must fail. They are built like the shipped ones, from sources that each break one rule."""
    prefix = Path(sysconfig.get_path("data"))
    tool = folder / "compile_spirv"
    source = REPOSITORY / "csrc/sycl/compile_spirv.cpp"
    flags = ["-std=c++17", "-w", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", "-isystem", f"{prefix}/include"]
    libraries = [f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lsycl"]
    _run([shutil.which("g++") or "c++", *flags, str(source), "-o", str(tool), *libraries])
    environment = os.environ | {"OCL_ICD_FILENAMES": f"{prefix}/lib/libintelocl.so"}
    for control in sorted(CONTROLS.glob("*.cpp")):
        _run([str(tool), str(control), str(folder), "", f"-I{REPOSITORY}", "-DLAMPORT_WORLD=4"], environment)
    return sorted(folder.glob("*.spv"))


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise GateImpossible(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")


def over_budget(name: str, device: str, found: Figures, budget: dict[str, dict[str, int]]) -> list[str]:
    allowed = budget.get(device, {}).get(name)
    if allowed is None:
        return ["no budget: run python -m tests.isa.gate --update-budget and look at the difference"]
    if found.per_packet > allowed:
        return [f"{found.per_packet} instructions per packet, budget {allowed}"]
    return []


def write_budget(results: dict[tuple[str, str], Figures]) -> None:
    lines = ["# Instructions in the loops of each kernel (SIMD16: for 16 packets), the most that the gate accepts.\n"]
    for device in DEVICES:
        lines.append(f'\n["{device}"]\n')
        lines += [f"{name} = {row.per_packet}\n" for (name, d), row in sorted(results.items()) if d == device]
    BUDGET.write_text("".join(lines))


def write_table(results: dict[tuple[str, str], Figures], compiler: str) -> None:
    lines = [
        "# Machine code of the kernels\n\n",
        "Written by `make isa` (tests/isa/gate.py), which fails unless every kernel polls with uncached 16-byte\n",
        "loads inside its spin loop, all loads of a round in flight together; stores to peers uncached and never\n",
        "reads back;\n",
        "has one atomic (the ticket, in own memory), no spill and no private memory; and stays within the budget.\n",
        "Kernels that scale rows round their square roots correctly. Of the fused collectives worlds 2, 4 and 8 are\n",
        "read, for bmg-g21 and pvc.\n",
        "Compiled, not run: no Intel GPU was involved.\n\n",
        f'Compiler: {compiler}. SIMD16; a count is for 16 packets of 16 bytes. "In loops" is everything a packet\n',
        'passes, the handling of a partial last packet included; "total" adds entry and exit.\n\n',
        "| kernel | polls | stores | " + " | ".join(f"{d} in loops / total" for d in DEVICES) + " |\n",
        "|---|---|---|" + "---|" * len(DEVICES) + "\n",
    ]
    for name in sorted({name for name, _ in results}):
        rows = [results.get((name, device)) for device in DEVICES]
        counts = " | ".join(f"{row.per_packet} / {row.instructions}" if row else "-" for row in rows)
        first = results[name, DEVICES[0]]
        lines.append(f"| {name} | {first.polls} | {first.peer_stores} | {counts} |\n")
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("".join(lines))


def compiler_version(root: Path) -> str:
    found = sorted(path.name for path in (root / "usr/lib/x86_64-linux-gnu").glob("libigc.so.*.*"))
    return "IGC " + found[-1].removeprefix("libigc.so.") if found else "IGC"


def gate(spirv: Path | None, update_budget: bool) -> int:
    try:
        from lamport_xpu import _sycl
    except ImportError as error:
        raise GateImpossible(f"the package was built without its SYCL target ({error})") from error

    compiler = Compiler.find()
    kernels = shipped_kernels(spirv or Path(_sycl.__file__).with_name("spirv"))
    budget = tomllib.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    failures: list[str] = []
    results: dict[tuple[str, str], Figures] = {}

    def examine(job: tuple[Path, str]) -> tuple[str, str, Figures, list[str]]:
        path, device = job
        match = KERNEL_NAME.match(path.stem)
        assert match is not None
        options = _sycl.gpu_build_options(match["collective"], int(match["world"]))
        name = path.stem.removeprefix("lamport_")
        try:
            kernel, memory = compiler.listing(path, device, options)
        except NoListing as error:
            return name, device, Figures(0, 0, 0, 0), [str(error)]
        return name, device, figures(kernel), check(kernel, memory, match["collective"], int(match["world"]))

    with ThreadPoolExecutor(os.cpu_count()) as pool, tempfile.TemporaryDirectory() as folder:
        for name, device, row, broken in pool.map(examine, [(k, d) for k in kernels for d in devices_for(k)]):
            results[name, device] = row
            if not update_budget:
                broken = broken + over_budget(name, device, row, budget)
            failures += [f"{name} on {device}: {what}" for what in broken]
        for control in compile_controls(Path(folder)):
            kernel, memory = compiler.listing(control, DEVICES[0])
            broken = check(kernel, memory, "all_reduce_one_shot", 4)
            print(f"control {control.stem}: {'; '.join(broken) or 'PASSES, but must fail'}")
            if not broken:
                failures.append(f"control {control.stem} passes the gate")
        plain = next(kernel for kernel in kernels if "qk_rms_norm_f16" in kernel.stem)
        if not list(rounding(compiler.listing(plain, DEVICES[0])[0])):  # built without what asks for it
            failures.append("control: square roots that are not rounded correctly pass the gate")

    print("\n".join(failures) if failures else f"{len(results)} listings of {len(kernels)} kernels hold every rule")
    if failures:
        return 1
    if update_budget:
        write_budget(results)
    write_table(results, compiler_version(compiler.root))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spirv", type=Path, help="folder of .spv files (default: those of the installed package)")
    parser.add_argument("--update-budget", action="store_true")
    arguments = parser.parse_args()
    try:
        return gate(arguments.spirv, arguments.update_budget)
    except GateImpossible as error:
        print(f"ISA gate cannot run: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
