"""What the machine code of a shipped kernel must look like. Each rule returns the ways in which it is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.isa.listing import Block, Kernel

# With a t: one packet for the whole sub-group, where one work-item polls or stores for all.
PACKET_LOAD = ("load.ugm.d32x4.a64.uc.uc", "load.ugm.d32x4t.a64.uc.uc")
PACKET_STORE = ("store.ugm.d32x4.a64.uc.uc", "store.ugm.d32x4t.a64.uc.uc")

#: Divide and take a root, which must be rounded correctly.
SCALES = ("qk_rms_norm", "add_all_reduce_rms_norm", "rs_sconv_ag_norm")


@dataclass(frozen=True)
class Memory:
    """Per-thread memory of a kernel, from the compiler's .zeinfo."""

    private: int = 0
    spill: int = 0
    scratch: int = 0


@dataclass(frozen=True)
class Figures:
    """The row of a kernel in docs/isa.md; the first two are held by the budget."""

    instructions: int
    per_packet: int
    polls: int
    peer_stores: int


def figures(kernel: Kernel) -> Figures:
    """`per_packet` counts what lies in loops: publish, poll (once), restore, sum, store, tail handling included."""
    in_loops = frozenset().union(*kernel.loops())
    return Figures(
        instructions=len(kernel.instructions()),
        per_packet=sum(len(kernel.blocks[name].instructions) for name in in_loops),
        polls=_count(kernel, PACKET_LOAD),
        peer_stores=_count(kernel, PACKET_STORE),
    )


def check(kernel: Kernel, memory: Memory, collective: str, world: int) -> list[str]:
    collects, stores = exchanged(collective, world)
    return [
        *_complete(kernel),
        *_polls(kernel, collects),
        *_stores(kernel, stores),
        *_no_read_back(kernel),
        *_atomics(kernel),
        *_memory(kernel, memory),
        *(rounding(kernel) if collective in SCALES else ()),
    ]


def exchanged(collective: str, world: int) -> tuple[Counter[int], int]:
    """Packets of a round of each collect, and uncached stores: those of each publish, and a restore a packet."""
    peers = world - 1
    if collective == "rs_sconv_ag_norm":  # what is gathered is sent to this rank too, and collected one by one
        collects: tuple[int, ...] = (peers, 1)
        publishes = peers + world
    else:
        trips = 2 if collective.endswith("two_shot") else 1
        collects, publishes = (peers,) * trips, peers * trips
    return Counter(collects), publishes + sum(collects)


def _count(kernel: Kernel, opcodes: tuple[str, ...]) -> int:
    return sum(instruction.opcode in opcodes for instruction in kernel.instructions())


def rounding(kernel: Kernel) -> Iterator[str]:
    """Correctly rounded roots take rsqtm and steps of madm; a plain rsqt or sqt is off by units of the last place."""
    if _count(kernel, ("math.rsqt", "math.sqt")) or not _count(kernel, ("math.rsqtm",)):
        yield "square roots are not rounded correctly"


def _complete(kernel: Kernel) -> Iterator[str]:
    """Guards the other rules: a listing read only in part proves nothing."""
    if len(kernel.instructions()) != kernel.header.get("instCount"):
        yield f"read {len(kernel.instructions())} instructions of {kernel.header.get('instCount')}"


def _polls(kernel: Kernel, collects: Counter[int]) -> Iterator[str]:
    """Each collect spins in a loop of its own on uncached 16-byte loads of all its packets, in flight together.

    The compiler may peel the first round: the same loads once more, ahead of the loop.
    """
    loops = kernel.loops()
    spins, peeled = Counter[int](), Counter[int]()
    for block in kernel.blocks.values():
        loads = sum(i.opcode in PACKET_LOAD for i in block.instructions)
        if loads == 0:
            continue
        yield from _serialised(block)
        around = min((loop for loop in loops if block.name in loop), key=len, default=frozenset[str]())
        restores = any(i.opcode in PACKET_STORE for name in around for i in kernel.blocks[name].instructions)
        (spins if around and not restores else peeled)[loads] += 1
    if spins != collects:
        yield f"loops spin on {_listed(spins)} uncached 16-byte loads instead of {_listed(collects)}"
    if not peeled <= spins:
        yield f"rounds of {_listed(peeled)} uncached loads outside a spin loop"


def _listed(counts: Counter[int]) -> str:
    return ", ".join(map(str, sorted(counts.elements()))) or "no"


def _serialised(block: Block) -> Iterator[str]:
    positions = [n for n, i in enumerate(block.instructions) if i.opcode in PACKET_LOAD]
    tokens: list[str] = []
    for instruction in block.instructions[positions[0] : positions[-1] + 1]:
        if any(instruction.waits_for(token) for token in tokens):
            yield f"{block.name}: waits for one poll before it issues the next"
            return
        if instruction.opcode in PACKET_LOAD and instruction.token:
            tokens.append(instruction.token)


def _stores(kernel: Kernel, expected: int) -> Iterator[str]:
    found = _count(kernel, PACKET_STORE)
    if found != expected:
        yield f"{found} uncached 16-byte stores instead of {expected}"


def _no_read_back(kernel: Kernel) -> Iterator[str]:
    """A load from the address just stored to would cross the link and come back."""
    for block in kernel.blocks.values():
        stored: set[str] = set()
        for instruction in block.instructions:
            if instruction.opcode.startswith("store.ugm") and ".uc.uc" in instruction.opcode and instruction.address:
                stored.add(instruction.address)
            elif instruction.is_load and instruction.address in stored:
                yield f"{block.name}: reads back what it stored to a peer"
                return


def _atomics(kernel: Kernel) -> Iterator[str]:
    """Only the ticket, in own memory: over PCIe there are no atomics."""
    found = sum(i.opcode.startswith("atomic") for i in kernel.instructions())
    if found != 1:
        yield f"{found} atomics instead of the ticket's one"


def _memory(kernel: Kernel, memory: Memory) -> Iterator[str]:
    private = max(memory.private, kernel.header.get("private memory size", 0))
    spill = max(memory.spill, kernel.header.get("spill size", 0))
    if private:
        yield f"{private} bytes of private memory"
    if spill:
        yield f"{spill} bytes of spills"
    if memory.scratch and not private and not spill:
        yield f"{memory.scratch} bytes of scratch memory"
