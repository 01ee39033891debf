"""Losses draw their class vectors, and some their noise: each test begins with the same draws."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
