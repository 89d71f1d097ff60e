"""Which algorithm at which size, and how large the workspace is for it.

Built-in thresholds are safe everywhere; `bench/allreduce_sizes.py --tune` measures better ones and keeps them in
the user's cache folder, one entry for each device, world size and dtype.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

DTYPES = ("float32", "float16", "bfloat16")

#: Larger than any tensor: an algorithm with this threshold is used to the end.
UNLIMITED = 2**62


@dataclass(frozen=True)
class Thresholds:
    """Sizes in bytes up to which an algorithm is used.

    one-shot up to `one_shot_max_bytes`, then two-shot up to `two_shot_max_bytes`, then the library the
    communicator was created from (MPI, torch.distributed) if it has one for the dtype.
    """

    one_shot_max_bytes: int
    two_shot_max_bytes: int = UNLIMITED


@dataclass(frozen=True)
class ChunkSizes:
    """Capacity of a one-shot slot and of a two-shot slice, in bytes; tensors beyond it stream through in chunks."""

    slot_bytes: int
    slice_bytes: int


# One chunk covers most tensors: every further chunk is another round of waiting. At world 8 a workspace has 8 MiB, on
# a CUDA GPU 16 MiB.
CHUNKS = {
    "cpu": ChunkSizes(slot_bytes=512 << 10, slice_bytes=256 << 10),
    "xpu": ChunkSizes(slot_bytes=512 << 10, slice_bytes=256 << 10),
    "cuda": ChunkSizes(slot_bytes=1 << 20, slice_bytes=512 << 10),
}


def default(device: str, world_size: int) -> Thresholds:
    """Built-in thresholds: where two-shot began to win on the machines at hand. At world 2 it saves no bytes."""
    if device == "cpu":
        return Thresholds(256 << 10 if world_size <= 2 else 32 << 10)
    if device == "cuda":
        return Thresholds(UNLIMITED if world_size <= 2 else 48 << 10)
    return Thresholds(UNLIMITED if world_size <= 2 else 256 << 10)


def cache_file() -> Path:
    """$XDG_CACHE_HOME/lamport-xpu/thresholds.json, ~/.cache by default."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lamport-xpu" / "thresholds.json"


def _key(device: str, world_size: int, dtype: str) -> str:
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return f"{device}/{world_size}/{dtype}"


def load(device: str, world_size: int, dtype: str) -> Thresholds:
    """The tuned thresholds for this machine, or the built-in ones."""
    key = _key(device, world_size, dtype)
    try:
        entry = json.loads(cache_file().read_text()).get(key)
        return (
            Thresholds(**{name: int(value) for name, value in entry.items()}) if entry else default(device, world_size)
        )
    except FileNotFoundError:
        return default(device, world_size)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{cache_file()} is damaged ({error}); delete it or run the benchmark with --tune") from error


def store(device: str, world_size: int, dtype: str, thresholds: Thresholds) -> Path:
    """Keeps tuned thresholds; returns the file they are in."""
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = json.loads(path.read_text()) if path.exists() else {}
    entries[_key(device, world_size, dtype)] = asdict(thresholds)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
    part.replace(path)  # readers see the old file or the new one, never half of it
    return path
