from __future__ import annotations

from pathlib import Path

import pytest
import torch

# Engines are forked from this process, and a process that has used its OpenMP threads cannot be forked.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def minimax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lamport_xpu.bench import tiny_models

    return tiny_models.write_minimax_m2(tmp_path_factory.mktemp("minimax"), tiny_models.Shape(layers=4))


@pytest.fixture(scope="session")
def shallow_minimax(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For torch.compile, whose time grows with the layers."""
    from lamport_xpu.bench import tiny_models

    return tiny_models.write_minimax_m2(tmp_path_factory.mktemp("shallow"), tiny_models.Shape(layers=2))


@pytest.fixture(scope="session")
def shared_expert_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lamport_xpu.bench import tiny_models

    return tiny_models.write_shared_expert_moe(tmp_path_factory.mktemp("shared"))
