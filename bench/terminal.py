"""Rank 0's screen: how wide it is, whether it is one, and a progress bar on it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_LAUNCHERS = re.compile(r"^(mpirun|mpiexec|prte|orte|hydra|srun)")
WIDTH = 112
"""Columns assumed where there is no terminal to ask: what a code block or a log shows without wrapping."""


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def launcher_tty(fd: int) -> bool:
    """True when this process' output ends on a terminal: its own, or that of the mpirun that passes it on.

    Under mpirun a rank's stdout and stderr are pipes, so isatty() would take away colours and the progress
    bar from everyone who types the command by hand.
    """
    if os.isatty(fd):
        return True
    try:
        pid, below_launcher = os.getpid(), False
        while pid > 1:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if _LAUNCHERS.match(name):
                below_launcher = True
            elif below_launcher:
                return False  # above the launcher: someone else's terminal
            if below_launcher and re.match(r"/dev/(pts/|tty)", os.readlink(f"/proc/{pid}/fd/{fd}")):
                return True
            pid = _parent(pid)
    except OSError:
        return False  # no /proc, or not ours to look at: plain output
    return False


def console(fd: int = 1) -> Console:
    """A console on stdout (1) or stderr (2), at most 120 columns wide."""
    terminal = launcher_tty(fd)
    width = min(shutil.get_terminal_size((WIDTH, 24)).columns, 120) if terminal else WIDTH
    return Console(stderr=fd == 2, force_terminal=terminal or None, width=int(os.environ.get("COLUMNS", width)))


class ProgressBar:
    """A bar on stderr that is gone when the work is. Does nothing where nobody would see it.

    Redrawn only when told to, between rounds: rich's refresh thread would wake up in the middle of a timed
    batch.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._bar: Progress | None = None
        if enabled and launcher_tty(2):
            self._bar = Progress(
                TextColumn("measuring"),
                BarColumn(40),
                TextColumn("{task.percentage:>3.0f}%  {task.description}"),
                TimeElapsedColumn(),
                console=console(2),
                auto_refresh=False,
                transient=True,
            )
            self._task = self._bar.add_task("", total=1.0)
        self._shown = -1.0

    def __call__(self, fraction: float, label: str) -> None:
        # Whole percents only: drawing costs a millisecond.
        if self._bar and (fraction >= self._shown + 0.01 or fraction < self._shown):
            self._shown = fraction
            self._bar.update(self._task, completed=fraction, description=label, refresh=True)

    def __enter__(self) -> ProgressBar:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
