"""Will it work on this machine, and if not, why: `python -m lamport_xpu.comm.doctor`, alone or under mpirun.

Every line is OK, warn or FAIL; warn and FAIL say what to do. The exit status is 0 exactly if nothing failed.
`--json` prints the same for programs, `--device cpu` leaves the GPUs out.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from dataclasses import replace
from typing import Any

from lamport_xpu.comm import doctor_ranks
from lamport_xpu.comm.doctor_checks import Finding, Gpus, machine_findings
from lamport_xpu.comm.doctor_ranks import RankReport

STYLE = {"OK": "green", "warn": "yellow", "FAIL": "bold red"}


def diagnose(device: str) -> tuple[list[Finding], list[RankReport]] | None:
    """Findings of the machine and of the ranks; None on ranks other than 0, which have nothing to print."""
    findings, gpus = machine_findings(device == "xpu")
    if not doctor_ranks.launched_by_mpi():
        return findings, doctor_ranks.start_ranks(len(gpus.devices))
    return _under_mpi(findings, gpus)


def _under_mpi(findings: list[Finding], gpus: Gpus) -> tuple[list[Finding], list[RankReport]] | None:
    bootstrap = doctor_ranks.mpi_bootstrap("doctor")
    mine = doctor_ranks.try_as_rank(bootstrap.rank, doctor_ranks.mpi_bootstrap, len(gpus.devices))
    everyone = [pickle.loads(data) for data in bootstrap.all_gather(pickle.dumps((findings, mine)))]
    if bootstrap.rank != 0:
        return None
    for rank, (theirs, report) in enumerate(everyone):
        # Rank 0's machine findings stand for all; others are shown where they fail and rank 0 does not.
        report.findings[:0] = [f for f in theirs if rank > 0 and f.status == "FAIL" and f not in findings]
    return findings, [report for _, report in everyone]


def merge(reports: list[RankReport]) -> list[Finding]:
    """One line where all ranks say the same, a line a rank where they differ."""
    merged: list[Finding] = []
    names = list(dict.fromkeys(finding.name for report in reports for finding in report.findings))
    for name in names:
        by_rank = [(report.rank, f) for report in reports for f in report.findings if f.name == name]
        first = by_rank[0][1]
        alike = all(f.status == "OK" for _, f in by_rank) or all(f == first for _, f in by_rank)
        if alike and len(by_rank) == len(reports):
            merged.append(replace(first, name=f"{name} ({len(reports)} ranks)"))
        else:
            merged += [replace(f, name=f"{name}, rank {rank}") for rank, f in by_rank]
    return merged


def verdict(findings: list[Finding], device: str) -> Finding:
    """The one line a hurried reader needs."""
    failed = [finding for finding in findings if finding.status == "FAIL"]
    what = "Intel GPUs" if device == "xpu" else "CPU"
    if failed:
        first = failed[0]
        return Finding("verdict", "FAIL", f"{what}: will not work. {first.name}: {first.detail}", first.remedy)
    return Finding("verdict", "OK", f"{what}: this will work")


def print_rich(findings: list[Finding], pairs: list[RankReport]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # in a file or a pipe, wrap as little as a wide terminal would
    if pairs:
        matrix = Table(title="IPC mode in which the rank of the row opens the column's", title_justify="left")
        for column in ("rank", "GPU", *(str(report.rank) for report in pairs)):
            matrix.add_column(column)
        for report in pairs:
            matrix.add_row(str(report.rank), report.gpu, *("-" if m == "own" else m for m in report.modes))
        console.print(matrix)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        detail = Text(finding.detail)
        if finding.remedy:
            detail.append(f"\n-> {finding.remedy}", style="cyan")
        table.add_row(Text(finding.status, style=STYLE[finding.status]), finding.name, detail)
    console.print(table)


def print_plain(findings: list[Finding], pairs: list[RankReport]) -> None:
    for report in pairs:
        print(f"     IPC mode, rank {report.rank} on {report.gpu}: {' '.join(report.modes)}")
    for finding in findings:
        print(f"{finding.status:4} {finding.name}: {finding.detail}")
        if finding.remedy:
            print(f"     -> {finding.remedy}")


def as_json(findings: list[Finding], pairs: list[RankReport]) -> dict[str, Any]:
    return {
        "ok": all(finding.status != "FAIL" for finding in findings),
        "findings": [finding.__dict__ for finding in findings],
        "ipc_modes": [report.modes for report in pairs],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lamport_xpu.comm.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", choices=("xpu", "cpu"), default="xpu", help="what it must work on")
    arguments = parser.parse_args()
    result = diagnose(arguments.device)
    if result is None:
        return 0
    machine, ranks = result
    findings = machine + merge(ranks)
    findings.append(verdict(findings, arguments.device))
    pairs = [report for report in ranks if report.modes]
    if arguments.json:
        print(json.dumps(as_json(findings, pairs), indent=2))
    else:
        try:
            print_rich(findings, pairs)
        except ImportError:  # rich comes with the extra "bench"; the doctor must work without
            print_plain(findings, pairs)
    return int(findings[-1].status == "FAIL")


if __name__ == "__main__":
    sys.exit(main())
