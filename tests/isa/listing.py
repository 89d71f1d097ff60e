"""Reads the listing (.asm) that Intel's compiler writes for a kernel: instructions, basic blocks, loops."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_BLOCK = re.compile(r"^// (B\d+):.*Preds:\{(?P<preds>[^}]*)\},\s+Succs:\{(?P<succs>[^}]*)\}")
_INSTRUCTION = re.compile(
    r"^(?:\((?P<predicate>[^)]*)\))?\s*(?P<opcode>[a-z]\S*)\s+\(\d+\|M\d+\)\s*(?P<operands>[^/]*)"
)
_BARE = re.compile(r"^(?:\([^)]*\))?\s+(?P<opcode>jmpi|goto|nop|sync\.\w+)\b(?P<operands>[^/]*)")
_HEADER = re.compile(r"^//\.(?P<key>[A-Za-z][\w ]*?)\s+(?P<value>\d+)\s*$")


@dataclass(frozen=True)
class Instruction:
    opcode: str
    operands: str

    @property
    def is_send(self) -> bool:
        return self.opcode.startswith(("load", "store", "send", "atomic", "apndctr"))

    @property
    def is_load(self) -> bool:
        return self.opcode.startswith("load")

    @property
    def is_store(self) -> bool:
        return self.opcode.startswith("store")

    @property
    def address(self) -> str | None:
        """The registers that hold the address, as written: `r12:2` of `[r12:2]`."""
        match = re.search(r"\[([^]]+)\]", self.operands)
        return match[1] if match else None

    @property
    def token(self) -> str | None:
        """The scoreboard token a send signals, `$4` of `{I@1,$4}`."""
        match = re.search(r"\$(\d+)(?!\.)\b", self.operands)
        return match[0] if match and self.is_send else None

    def waits_for(self, token: str) -> bool:
        """Whether this instruction needs the data of an earlier send."""
        if f"{token}.dst" in self.operands:
            return True
        if not self.opcode.startswith("sync"):
            return False
        return self.opcode == "sync.allwr" and (token in self.operands or "null" in self.operands)


@dataclass
class Block:
    name: str
    successors: tuple[str, ...]
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Kernel:
    name: str
    header: dict[str, int]
    blocks: dict[str, Block]

    def instructions(self) -> list[Instruction]:
        return [instruction for block in self.blocks.values() for instruction in block.instructions]

    def loops(self) -> list[frozenset[str]]:
        """Natural loops as sets of block names: what reaches a back edge without passing the loop's head."""
        predecessors: dict[str, set[str]] = {name: set() for name in self.blocks}
        for block in self.blocks.values():
            for successor in block.successors:
                predecessors[successor].add(block.name)
        dominators = self._dominators(predecessors)
        bodies: dict[str, set[str]] = {}
        for block in self.blocks.values():
            for head in block.successors:
                if head not in dominators[block.name]:
                    continue
                body = bodies.setdefault(head, {head})
                pending = [block.name]
                while pending:
                    name = pending.pop()
                    if name not in body:
                        body.add(name)
                        pending += predecessors[name]
        return [frozenset(body) for body in bodies.values()]

    def _dominators(self, predecessors: dict[str, set[str]]) -> dict[str, set[str]]:
        names = list(self.blocks)
        dominators = {name: set(names) for name in names}
        dominators[names[0]] = {names[0]}
        changed = True
        while changed:
            changed = False
            for name in names[1:]:
                incoming = [dominators[p] for p in predecessors[name]]
                new = (set.intersection(*incoming) if incoming else set()) | {name}
                if new != dominators[name]:
                    dominators[name] = new
                    changed = True
        return dominators


def parse(text: str) -> Kernel:
    name = ""
    header: dict[str, int] = {}
    blocks: dict[str, Block] = {}
    current: Block | None = None
    for line in text.splitlines():
        if line.startswith("//.kernel "):
            name = line.split()[1].removeprefix("__sycl_kernel_")
        elif match := _HEADER.match(line):
            header[match["key"]] = int(match["value"])
        elif match := _BLOCK.match(line):
            successors = tuple(s.strip() for s in match["succs"].split(",") if s.strip())
            current = blocks[match[1]] = Block(match[1], successors)
        elif current is not None and (match := _INSTRUCTION.match(line) or _BARE.match(line)):
            current.instructions.append(Instruction(match["opcode"], match["operands"].strip()))
    if not name or not blocks:
        raise ValueError("not a kernel listing")
    return Kernel(name, header, blocks)
