"""One rank on null hardware: every call of the workspace that needs nothing executed.

python workspace_rank.py RANK WORLD_SIZE SOCKET_PATH
"""

from __future__ import annotations

import json
import sys

from lamport_xpu import _level_zero
from lamport_xpu.comm.bootstrap import LocalBootstrap
from lamport_xpu.comm.level_zero import LevelZeroWorkspace
from lamport_xpu.comm.policy import CHUNKS


def main() -> None:
    rank, world_size = int(sys.argv[1]), int(sys.argv[2])
    bootstrap = LocalBootstrap(rank, world_size, sys.argv[3], 30.0)
    workspace = LevelZeroWorkspace(rank, world_size, CHUNKS["xpu"], 30.0, device=rank, verify=False)
    handle = workspace.allocate("null hardware")
    handles = bootstrap.all_gather(handle)
    for peer in range(world_size):
        if peer != rank:
            workspace.open_peer(peer, handles[peer])
    links, addresses = workspace.links, workspace.addresses
    bootstrap.barrier()
    workspace.withdraw("null hardware")
    workspace.close_peers()
    bootstrap.barrier()
    workspace.free()
    report = {
        "drivers": _level_zero.drivers(),
        "devices": _level_zero.devices(),
        "peer_access": _level_zero.peer_access(),
        "links": links,
        "addresses": addresses,
        "warnings": workspace.warnings,
    }
    print("REPORT " + json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
