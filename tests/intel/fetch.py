"""Fetch Intel's GPU driver and compiler from this machine's own Debian mirror into a cache folder.

Nothing is installed and the system's apt state is not touched: apt runs on a private state, and `dpkg -x`
unpacks the packages (with the C library they were built against) under .cache/intel/root. The mirror's
address comes from the machine's apt sources. `python -m tests.intel.fetch` prints where things are, or why
they cannot be had.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "intel"
ROOT = CACHE / "root"
STAMP = CACHE / "packages.txt"

SUITE = "unstable"  # the only one that carries a driver recent enough for Battlemage
PACKAGES = (
    "libze-intel-gpu1",  # the driver
    "libze1",  # the loader
    "libze-dev",  # its header, to compare our declarations with
    "intel-ocloc",  # the offline compiler
    "libigc2",
    "libigdfcl2",
    "libigdgmm12",
    "libc6",
    "libstdc++6",
    "libgcc-s1",
)
DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
TIMEOUT_S = 900


class FetchImpossible(RuntimeError):
    """The packages cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Mirror:
    uri: str
    keyring: str


def _os_release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _deb822_entries(text: str) -> list[dict[str, str]]:
    """Stanzas of a .sources file, comments dropped, continuation lines joined."""
    entries: list[dict[str, str]] = []
    for stanza in re.split(r"\n\s*\n", text):
        lines = [line for line in stanza.splitlines() if not line.startswith("#")]
        fields: dict[str, str] = {}
        key = ""
        for line in lines:
            if line[:1].isspace():
                fields[key] = fields.get(key, "") + " " + line.strip()
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if fields:
            entries.append(fields)
    return entries


def _one_line_entries(text: str) -> list[dict[str, str]]:
    """Lines `deb [options] uri suite components...` of a .list file."""
    entries = []
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)", line.strip())
        if match:
            keyring = re.search(r"signed-by=(\S+)", match["options"] or "")
            entry = {"types": "deb", "uris": match["uri"], "suites": match["suite"]}
            entries.append(entry | ({"signed-by": keyring[1]} if keyring else {}))
    return entries


def find_mirror(apt: Path = Path("/etc/apt"), release: dict[str, str] | None = None) -> Mirror:
    """The Debian mirror this machine installs its own packages from."""
    release = release or _os_release()
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian":
        raise FetchImpossible(
            f"this is {release.get('ID', 'no known distribution')}, whose sources name no Debian mirror"
        )
    entries: list[dict[str, str]] = []
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if path.suffix == ".sources":
            entries += _deb822_entries(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            entries += _one_line_entries(path.read_text())
    for entry in entries:
        if "deb" in entry.get("types", "").split() and codename in entry.get("suites", "").split():
            return Mirror(entry["uris"].split()[0], entry.get("signed-by", DEBIAN_KEYRING))
    raise FetchImpossible(f"no apt source of this machine carries the suite {codename}")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FetchImpossible(f"{command[0]} did not finish within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise FetchImpossible(f"{command[0]} failed: {' / '.join(lines[-3:])}")
    return done.stdout


def fetch(force: bool = False) -> Path:
    """Root folder of the unpacked packages; downloads on the first call only (about 80 MB)."""
    if STAMP.exists() and not force:
        return ROOT
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise FetchImpossible(f"{tool} is not on this machine")
    mirror = find_mirror()
    state = CACHE / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()  # nothing counts as installed, so the download is the full closure
    (state / "sources.list").write_text(f"deb [signed-by={mirror.keyring}] {mirror.uri} {SUITE} main\n")
    options = {
        "Dir::State::Lists": state / "lists",
        "Dir::State::status": state / "status",
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Cache": state,
        "Dir::Cache::archives": state / "archives",
        "APT::Sandbox::User": "root",  # the cache folder need not be readable by the user _apt
        "APT::Architecture": "amd64",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
    }
    apt = ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
    _run([*apt, "update"])
    _run([*apt, "-y", "--download-only", "--no-install-recommends", "install", *PACKAGES])

    shutil.rmtree(ROOT, ignore_errors=True)
    archives = sorted((state / "archives").glob("*.deb"))
    for archive in archives:
        _run(["dpkg", "-x", str(archive), str(ROOT)])
    STAMP.write_text("".join(f"{archive.name}\n" for archive in archives))
    return ROOT


def main() -> int:
    try:
        print(f"Intel GPU packages: {fetch(force='--force' in sys.argv)}")
    except FetchImpossible as error:
        print(f"Intel GPU packages: not available ({error})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
