"""What the tests of the application share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def example(_world: Path) -> Path:
    """runs/voices, a network that nobody trained; voices/, trials.txt, a.wav and b.wav. Read only:
    copy it to change it.
    """
    return _world


@pytest.fixture(scope="session")
def run(example: Path) -> Path:
    """The folder of an untrained model of voices."""
    return example / "runs" / "voices"
