"""What the tests of the models that come with Likeness share."""

from pathlib import Path

import pytest

from likeness.modalities import synthetic


@pytest.fixture(scope="module")
def spoken(module_path: Path) -> Path:
    """Two synthetic speakers with two recordings each."""
    synthetic.write_voices(module_path, num_speakers=2, num_utterances=2, seconds=(2.0, 2.5))
    return module_path
