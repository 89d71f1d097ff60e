"""Bad input and lost peers: typed errors, nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lamport_xpu import _host
from lamport_xpu.comm import CollectiveTimeout, Communicator, errors
from lamport_xpu.comm.bootstrap import LocalBootstrap
from tests.ranks import run_processes, run_ranks
from tests.tensor_at import CUDA, TensorAt


class CudaImpostor(TensorAt):
    """Eight floats that DLPack says live on CUDA device 0."""

    def __init__(self) -> None:
        super().__init__(0, (8,), "float32", CUDA)


def _still_works(comm: Communicator) -> None:
    assert (comm.all_reduce(np.ones(5, np.float32)) == comm.world_size).all()


def test_bad_tensors_are_refused_and_the_communicator_stays_usable() -> None:
    def body(comm: Communicator) -> None:
        good, overlapping = torch.ones(8), torch.ones(9)
        bad: list[tuple[type[Exception], object, object]] = [
            (errors.UnsupportedDtypeError, torch.ones(8, dtype=torch.float64), None),
            (errors.UnsupportedDtypeError, np.ones(8, np.int32), None),
            (errors.NonContiguousError, torch.ones(8, 2)[:, 0], None),
            (errors.NonContiguousError, np.ones((4, 4), np.float32).T, None),
            (errors.TooLargeError, torch.ones(2000), None),
            (errors.WrongDeviceError, CudaImpostor(), None),
            (errors.TensorError, torch.ones(8, device="meta"), None),
            (errors.TensorError, overlapping[:8], overlapping[1:]),
            (errors.TensorError, good, torch.ones(9)),
            (errors.TensorError, good, torch.ones(8, dtype=torch.float16)),
            (errors.TensorError, "text", good),
        ]
        for kind, x, out in bad:
            with pytest.raises(kind, match=r"\w+"):
                comm.all_reduce(x, out if out is not None else x)
            _still_works(comm)

    run_ranks(2, body, max_bytes=4096)


def test_closed_communicator() -> None:
    def body(comm: Communicator) -> None:
        comm.close()
        comm.close()
        with pytest.raises(errors.ClosedError, match="closed"):
            comm.all_reduce(np.ones(3, np.float32))

    run_ranks(2, body)


@pytest.mark.parametrize("world", [2, 4])
def test_absent_peer_is_named_within_the_time_limit(world: int) -> None:
    def body(comm: Communicator) -> None:
        _still_works(comm)
        if comm.rank == world - 1:
            return
        began = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=f"rank {world - 1}") as caught:
            comm.all_reduce(np.ones(3072, np.float32))
        assert caught.value.peer == world - 1
        assert 0.4 < time.monotonic() - began < 5
        with pytest.raises(errors.ClosedError, match="abandoned"):
            comm.all_reduce(np.ones(3, np.float32))

    run_ranks(world, body, timeout=0.5)


def test_killed_peer_is_a_timeout_and_leaves_no_segment() -> None:
    def body(comm: Communicator) -> str:
        _still_works(comm)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(CollectiveTimeout) as caught:
            comm.all_reduce(np.ones(8, np.float32))
        return str(caught.value)

    with pytest.raises(pytest.fail.Exception, match="rank 1 ended without an answer"):
        run_ranks(2, body, timeout=0.5)


def test_kill_during_bring_up_leaves_no_segment(tmp_path: Path) -> None:
    """Rank 1 dies right after allocating, before anyone has opened its segment; rank 0 cleans up after it."""

    def main(rank: int) -> None:
        if rank == 1:

            class Dies(LocalBootstrap):
                rounds = 0

                def all_gather(self, data: bytes) -> list[bytes]:
                    self.rounds += 1
                    if self.rounds == 3:
                        assert list(Path("/dev/shm").glob("lamport-*"))
                        os.kill(os.getpid(), signal.SIGKILL)
                    return super().all_gather(data)

            Communicator(Dies(1, 2, str(tmp_path / "s"), 2), timeout=2)
        else:
            with pytest.raises(errors.BootstrapTimeout, match="rank 1"):
                Communicator.from_local(0, 2, str(tmp_path / "s"), timeout=2)

    with pytest.raises(pytest.fail.Exception, match="rank 1 ended without an answer"):
        run_processes(2, main)


def test_exception_in_a_rank_leaves_no_segment() -> None:
    def body(comm: Communicator) -> None:
        _still_works(comm)
        raise KeyError("the user's own error")

    with pytest.raises(pytest.fail.Exception, match="the user's own error"):
        run_ranks(2, body)


def test_interrupt_reaches_a_waiting_rank() -> None:
    def body(comm: Communicator) -> None:
        if comm.rank == 1:
            return
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            comm.all_reduce(np.ones(8, np.float32))
        assert time.monotonic() - began < 5

    run_ranks(2, body, timeout=30)


def test_checked_mode_detects_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMPORT_CHECK", "1")

    def body(comm: Communicator) -> None:
        with pytest.raises(
            errors.MismatchError, match=r"rank 0: all_reduce float32 32 B.*rank 1: all_reduce float32 36 B"
        ):
            comm.all_reduce(np.ones(8 + comm.rank, np.float32))
        with pytest.raises(errors.MismatchError, match="float16"):
            comm.all_reduce(np.ones(8, np.float16 if comm.rank else np.float32))
        _still_works(comm)

    run_ranks(2, body)


def test_world_size_over_8() -> None:
    class Crowd:
        rank, world_size, timeout = 0, 9, 1.0

    with pytest.raises(errors.WorkspaceError, match="1 to 8"):
        Communicator(Crowd())  # type: ignore[arg-type]


def test_unknown_device() -> None:
    with pytest.raises(errors.WorkspaceError, match="tpu"):
        Communicator.from_local(0, 1, "", device="tpu")


def test_a_missing_rank_does_not_hang_bring_up(tmp_path: Path) -> None:
    with pytest.raises(errors.BootstrapTimeout, match=r"\[1\] did not connect"):
        Communicator.from_local(0, 2, str(tmp_path / "s"), timeout=0.3)
    with pytest.raises(errors.BootstrapTimeout, match="not listening"):
        Communicator.from_local(1, 2, str(tmp_path / "s"), timeout=0.3)


def test_full_shared_memory_is_every_ranks_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 finds /dev/shm full; rank 0 learns why from it."""

    class Full:
        close_is_collective = False

        def __init__(self, *_: object) -> None:
            pass

        def allocate(self, token: str) -> bytes:
            raise errors.SharedMemoryFullError("/dev/shm has 0 KiB free")

        def close_peers(self) -> None:
            pass

        free = close_peers

        def withdraw(self, token: str) -> None:
            pass

    def main(rank: int) -> str:
        kind = errors.WorkspaceError
        if rank == 1:
            kind = errors.SharedMemoryFullError
            monkeypatch.setattr(_host, "ShmWorkspace", Full)
        with pytest.raises(kind, match="/dev/shm has 0 KiB free") as caught:
            Communicator.from_local(rank, 2, str(tmp_path / "s"), timeout=5)
        return str(caught.value)

    assert run_processes(2, main)[0].startswith("rank 1 could not allocate")


def test_a_really_full_shared_memory() -> None:
    """In a mount namespace whose /dev/shm holds 64 KiB."""
    script = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec " + shlex.join(
        [sys.executable, "-c", "from lamport_xpu.comm import Communicator; Communicator.from_local(0, 1, '')"]
    )
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert "SharedMemoryFullError" in done.stderr
    assert "KiB free and this rank's workspace needs" in done.stderr
    assert "--shm-size" in done.stderr
