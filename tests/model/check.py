#!/usr/bin/env python3
"""Checks the model of the protocol, exhaustively, and that every mutant of it is caught.

    tests/model/check.py [NAME ...]        only the rows whose model, configuration or mutant is named
    tests/model/check.py --trace NAME ...  and the shortest counterexample of each

Needs spin and a C compiler. Exit code 1 if any verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).resolve().with_name("lamport.pml")
# A run that needs more of any of these has failed: nothing is checked by halves.
SECONDS = 150
MEGABYTES = 1500
DEPTH = 4_000_000

HOLDS = "holds"
OVERWRITE = "overwrite"  # a store met a word that was not re-armed
WRONG = "wrong value"  # stale, torn, or another's
DEADLOCK = "deadlock"
OTHER = "other"  # left over at the end, or an assumption of the model itself
INCOMPLETE = "incomplete"


@dataclass(frozen=True)
class Configuration:
    """`calls`: a fixed sequence of "kind size grids"; `menu`: any sequence of "kind size" on any grids."""

    name: str
    ranks: int = 2
    groups: int = 2
    words: int = 2
    slot: int = 2
    slice: int = 1
    calls: tuple[str, ...] = ()
    menu: tuple[str, ...] = ()
    lazy: bool = False
    same_grid: bool = False

    def source(self, mutant: str | None) -> str:
        kinds = {"one": "ONE_SHOT", "two": "TWO_SHOT"}
        plan, menu = "", ""
        for number, (kind, size, grids) in enumerate(call.split() for call in self.calls):
            grid = [*grids, "0"][:3]
            plan += f" :: k == {number} -> issue({kinds[kind]}, {size}, {', '.join(grid)})"
        for kind, size in (call.split() for call in self.menu):
            menu += f" :: KIND = {kinds[kind]}; SIZE = {size}"
        lines = [
            f"#define RANKS {self.ranks}",
            f"#define GROUPS {self.groups}",
            f"#define WORDS {self.words}",
            f"#define SLOT {self.slot}",
            f"#define SLICE {self.slice}",
            f"#define CALLS {len(self.calls)}",
            f"#define PLAN {plan}",
            f"#define MENU {menu}",
            *(["#define LAZY"] if self.lazy else []),
            *(["#define SAME_GRID"] if self.same_grid else []),
            *([f"#define {mutant}"] if mutant else []),
            f'#include "{MODEL}"',
        ]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        calls = ", ".join(self.calls) if self.calls else "any of " + ", ".join(self.menu)
        grid = "" if self.calls else " on equal grids" if self.same_grid else " on any grids"
        shape = f"{self.ranks}r {self.groups}g {self.words}w slot {self.slot} slice {self.slice}"
        return f"{shape}: {calls}{grid}{'; lazy' if self.lazy else ''}"


# "one 3 21": a one-shot of 3 packets on 2 groups of rank 0 and 1 group of rank 1.
CONFIGURATIONS = (
    Configuration("stream", calls=("one 3 22", "one 2 12", "one 1 21", "one 5 22", "one 2 11", "one 1 22")),
    Configuration("mixed", calls=("one 3 22", "two 3 12", "one 1 11", "two 1 22", "one 5 21", "two 2 22")),
    Configuration(
        "slices", slice=2,
        calls=("two 6 22", "two 3 12", "one 2 22", "two 10 21", "two 1 22", "one 3 22"),
    ),
    Configuration(
        "three", ranks=3, words=1, lazy=True,
        calls=("one 3 222", "two 4 121", "one 1 112", "two 1 222", "one 5 212", "two 2 222"),
    ),
    Configuration(
        "three-slices", ranks=3, words=1, slice=2, lazy=True,
        calls=("two 7 222", "one 2 122", "two 4 212", "two 1 111", "one 3 222"),
    ),
    Configuration("any-landing", words=1, menu=("one 1", "one 3")),
    Configuration("any-stream", words=1, lazy=True, menu=("one 1", "one 3", "one 5")),
    Configuration("any-mixed", words=1, lazy=True, menu=("one 1", "one 2", "two 3")),
    Configuration("any-slices", words=1, slice=2, lazy=True, menu=("two 6", "two 1")),
    Configuration("any-three", ranks=3, words=1, lazy=True, same_grid=True, menu=("one 1", "one 2")),
    Configuration(
        "any-three-1", ranks=3, groups=1, words=1, lazy=True, menu=("one 1", "one 3", "two 1", "two 4")
    ),
)  # fmt: skip

# What each mutant does to which configuration.
MUTANTS = (
    ("ONE_GENERATION", "stream", OVERWRITE),
    ("NO_RESTORE", "stream", OVERWRITE),
    ("NO_RESTORE", "slices", OVERWRITE),
    ("POLL_BEFORE_PUBLISH", "stream", DEADLOCK),
    ("EPOCH_PER_GROUP", "stream", OVERWRITE),
    ("EPOCH_PER_GROUP", "three", DEADLOCK),
    ("NO_FENCE", "stream", OVERWRITE),
    ("NO_FENCE", "slices", OVERWRITE),
    ("ADVANCE_BY_ONE", "stream", OVERWRITE),
    ("EARLY_ADVANCE", "stream", DEADLOCK),
    ("FIRST_WORD_ONLY", "stream", WRONG),
    ("RAGGED_CHUNKS", "stream", OVERWRITE),
    ("RAGGED_CHUNKS", "slices", OVERWRITE),
)


Row = tuple[Configuration, str | None, str]  # what to check, its mutant, the expected verdict


@dataclass
class Result:
    row: Row
    got: str
    states: int
    seconds: float
    story: str


def verdict(output: str) -> str:
    """What pan says; a search that was cut short in any way holds nothing."""
    if re.search(r"pan:\d+: invalid end state", output):
        return DEADLOCK
    if violated := re.search(r"assertion violated (.*) \(at depth", output):
        condition = violated.group(1)
        if re.match(r"\(+mem\[.*?\]==0\)", condition):
            return OTHER if "held" in condition else OVERWRITE
        return WRONG if condition.startswith("(mem[") else OTHER
    cut_short = "max search depth too small" in output or "not completed" in output
    return HOLDS if re.search(r"errors: 0\b", output) and not cut_short else INCOMPLETE


def check(row: Row, trace: bool) -> Result:
    configuration, mutant, expected = row
    with tempfile.TemporaryDirectory() as folder:

        def run(*command: str) -> str:
            done = subprocess.run(command, cwd=folder, text=True, timeout=SECONDS, capture_output=True)
            return done.stdout + done.stderr

        Path(folder, "m.pml").write_text(configuration.source(mutant))
        # No partial-order reduction: it assumes more about `hidden` variables than is worth relying on.
        compiler = ["cc", "-DSAFETY", "-DCOLLAPSE", "-DNOFAIR", "-DNOREDUCE", f"-DMEMLIM={MEGABYTES}", "-w"]
        compiler += ["-O0" if mutant else "-O1", "pan.c", "-o"]
        output, story, started = "", "", time.monotonic()
        try:
            output = run("spin", "-a", "m.pml") + run(*compiler, "pan")
            started = time.monotonic()
            output += run("./pan", f"-m{DEPTH}", "-w22")
            seconds = time.monotonic() - started
            got = verdict(output)
            if got != HOLDS and (trace or got != expected):
                story = output
                if Path(folder, "m.pml.trail").exists():
                    run(*compiler, "shorten", "-DREACH")
                    shorter = run("./shorten", "-m2000", "-i")
                    # Replayed by the checker: spin's own simulator strays from these trails.
                    run(*compiler, "tell", "-DPRINTF")
                    lines = run("./tell", "-r", "m.pml.trail").splitlines()
                    story = "\n".join(line for line in lines if re.match(r"(rank \d group|call) \d", line))
                    story += "\n" + "\n".join(re.findall(r"pan:\d+: .*", shorter)[-1:])
        except (subprocess.TimeoutExpired, FileNotFoundError) as error:
            got, seconds, story = INCOMPLETE, time.monotonic() - started, f"{output}\n{error}"
        states = re.search(r"(\d+) states, stored", output)
        return Result(row, got, int(states.group(1)) if states else 0, seconds, story)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--trace", action="store_true", help="tell the shortest counterexample")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="runs at a time (default %(default)s)"
    )
    args = parser.parse_args()
    if missing := [tool for tool in ("spin", "cc") if not shutil.which(tool)]:
        print(f"{' and '.join(missing)} not found: apt-get install spin gcc", file=sys.stderr)
        return 2

    by_name = {configuration.name: configuration for configuration in CONFIGURATIONS}
    rows: list[Row] = [(configuration, None, HOLDS) for configuration in CONFIGURATIONS]
    rows += [(by_name[name], mutant, how) for mutant, name, how in MUTANTS]
    known = {name for row in rows for name in (row[0].name, row[1]) if name}
    if unknown := set(args.names) - known:
        parser.error(f"no {', '.join(sorted(unknown))}; known: {', '.join(sorted(known))}")
    if args.names:
        rows = [row for row in rows if (row[1] or row[0].name) in args.names]

    line = "| {:<19} | {:<12} | {:>9} | {:>7} | {:<11} | {:<11} |"
    print(line.format("model", "calls", "states", "seconds", "expected", "got"))
    print(line.format(*("---" for _ in range(6))))
    failed = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(lambda row: check(row, args.trace), rows):
            configuration, mutant, expected = result.row
            print(
                line.format(
                    mutant or "protocol",
                    configuration.name,
                    result.states,
                    f"{result.seconds:.1f}",
                    expected,
                    result.got,
                ),
                flush=True,
            )
            if result.got != expected:
                failed.append(result)
            if result.got != expected or (args.trace and result.got != HOLDS):
                print(result.story)
    print()
    print("r ranks, g work-groups, w words a packet; one 3 21: a one-shot of 3 packets on 2 groups of rank 0")
    print("and 1 group of rank 1; lazy: a store lands when it is polled for, not at any moment\n")
    for configuration in dict.fromkeys(row[0] for row in rows):
        print(f"{configuration.name:<12}  {configuration}")
    print(f"\n{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
