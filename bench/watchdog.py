"""Ends a process that stopped making progress, and says where: several peers can hang for ever."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from types import TracebackType

_FAREWELL_S = 1.0
"""Between the message and the end: all ranks get to say where they are before the launcher ends them."""


class Watchdog:
    """To be fed every `limit_s` seconds. `at` is what the process is doing, for the message.

    The watching thread sleeps on a lock and takes no time from what is being timed. Should native code hold
    the interpreter's lock for ever, faulthandler, which needs no lock, ends the process a little later.
    """

    def __init__(self, rank: int, limit_s: float) -> None:
        self.at = ""
        self._rank, self._limit_s = rank, limit_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.feed()

    def feed(self) -> None:
        """Another `limit_s` seconds from now."""
        self._deadline = time.monotonic() + self._limit_s
        faulthandler.dump_traceback_later(self._limit_s + 2 * _FAREWELL_S, exit=True)

    def _watch(self) -> None:
        while (left := self._deadline - time.monotonic()) > 0:
            if self._stop.wait(left):
                return
        print(f"rank {self._rank}: no progress for {self._limit_s:g} s {self.at}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        time.sleep(_FAREWELL_S)
        os._exit(1)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
