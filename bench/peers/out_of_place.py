"""Backends that reduce from memory of their own, among others that reduce in place."""

from __future__ import annotations

from collections.abc import Callable

import torch


class OutOfPlace:
    """A call that looks like one in place. The copies to and from the buffer are made once around a captured batch of
    calls, whose every call then reduces the same input; outside a capture they are made around every call."""

    def __init__(
        self, buffer: torch.Tensor, source: torch.Tensor, result: torch.Tensor, reduce: Callable[[], object]
    ) -> None:
        self._buffer, self._source, self._result, self._reduce = buffer, source, result, reduce

    def before(self) -> None:
        """Brings the input to where it is reduced from."""
        self._source.copy_(self._buffer)

    def after(self) -> None:
        """Brings the result to where it is looked at."""
        if self._result is not self._buffer:
            self._buffer.copy_(self._result)

    def __call__(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            self._reduce()
        else:
            self.before()
            self._reduce()
            self.after()
