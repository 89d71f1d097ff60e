"""The mirror is the one that the machine's own packages come from, in either format of apt's sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.intel.fetch import DEBIAN_KEYRING, FetchImpossible, find_mirror

DEBIAN = {"ID": "debian", "VERSION_CODENAME": "bookworm"}


def sources(apt: Path, **files: str) -> Path:
    (apt / "sources.list.d").mkdir(parents=True)
    (apt / "sources.list").write_text(files.pop("list", ""))
    for name, text in files.items():
        (apt / "sources.list.d" / name.replace("_", ".")).write_text(text)
    return apt


def test_stanzas(tmp_path: Path) -> None:
    apt = sources(
        tmp_path / "apt",
        vendor_list="deb https://vendor.invalid/apt stable main\n",
        debian_sources="Types: deb\n# a comment\nURIs: http://mirror.invalid/debian\n"
        "Suites: bookworm\n bookworm-updates\nComponents: main\nSigned-By: /keys/own.gpg\n\nTypes: deb\nURIs: http://mirror.invalid/security\n"
        "Suites: bookworm-security\nComponents: main\n",
    )
    mirror = find_mirror(apt, DEBIAN)
    assert (mirror.uri, mirror.keyring) == ("http://mirror.invalid/debian", "/keys/own.gpg")


def test_lines(tmp_path: Path) -> None:
    text = "# deb http://old.invalid/debian bookworm main\n"
    text += "deb [arch=amd64] http://mirror.invalid/debian bookworm main\n"
    mirror = find_mirror(sources(tmp_path / "apt", list=text), DEBIAN)
    assert (mirror.uri, mirror.keyring) == ("http://mirror.invalid/debian", DEBIAN_KEYRING)


def test_no_mirror_says_why(tmp_path: Path) -> None:
    apt = sources(tmp_path / "apt", vendor_list="deb https://vendor.invalid/apt stable main\n")
    with pytest.raises(FetchImpossible, match="carries the suite bookworm"):
        find_mirror(apt, DEBIAN)
    with pytest.raises(FetchImpossible, match="ubuntu"):
        find_mirror(apt, {"ID": "ubuntu", "VERSION_CODENAME": "noble"})
