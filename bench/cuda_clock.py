"""Time on a CUDA GPU: calls captured in a graph, its replay between two events.

So the figure holds what the GPU does, one call starting when the one before has ended, and nothing of Python or of the
launch path, as in an engine that decodes from a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lamport_xpu.bench.peers.base import Call
from lamport_xpu.bench.peers.out_of_place import OutOfPlace


class CudaClock:
    """See the module. What a capture raises, the timed function raises: it becomes that backend's row."""

    def __init__(self) -> None:
        self._capture_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def prepare(self, call: Call, calls: int) -> Callable[[], float]:
        try:
            graph = self._capture(call, calls)
        except Exception as error:  # noqa: BLE001 - the other ranks wait for this one in the timed function
            failure = error

            def fail() -> float:
                raise failure

            return fail
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

        def timed() -> float:
            # On the stream that filled the buffer, so after that.
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3

        return timed

    def _capture(self, call: Call, calls: int) -> torch.cuda.CUDAGraph:
        """Bare capture: torch.cuda.graph would collect garbage and empty the allocator's cache every time."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._capture_stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                if isinstance(call, OutOfPlace):
                    call.before()
                for _ in range(calls):
                    call()
                if isinstance(call, OutOfPlace):
                    call.after()
            finally:
                graph.capture_end()
        return graph
