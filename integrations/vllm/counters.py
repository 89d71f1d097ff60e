"""How many calls went where, and why.

Counts calls from Python: a replayed graph was counted once, when it was captured.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from multiprocessing.util import Finalize

from lamport_xpu.integrations.vllm import settings

HERE = "lamport"


class Counters:
    """Calls of one communicator: by (operation, HERE) or (operation, reason for stock)."""

    def __init__(self) -> None:
        self.calls: defaultdict[tuple[str, str], int] = defaultdict(int)

    def report_at_exit(self, title: str) -> None:
        """With LAMPORT_VLLM_REPORT=1: one line for each operation, to stderr."""
        if settings.report():
            # Not atexit, which a forked worker leaves out.
            Finalize(None, self._report, (title,), exitpriority=0)

    def _report(self, title: str) -> None:
        lines = [f"lamport-xpu {title}: {line}" for line in self.lines()]
        print("\n".join(lines), file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        if not self.calls:
            return ["no calls"]
        result = []
        for operation in sorted({operation for operation, _ in self.calls}):
            here = self.calls.get((operation, HERE), 0)
            stock = {
                reason: count for (name, reason), count in self.calls.items() if name == operation and reason != HERE
            }
            why = ", ".join(f"{reason}: {count}" for reason, count in sorted(stock.items()))
            result.append(f"{operation}: {here} here, {sum(stock.values())} stock" + (f" ({why})" if why else ""))
        return result
