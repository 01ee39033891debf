"""What the tests of the models that come with Likeness share."""

from pathlib import Path

import pytest

from likeness.modalities import synthetic


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two synthetic speakers with two recordings each."""
    folder = tmp_path_factory.mktemp("spoken")
    synthetic.write_voices(folder, num_speakers=2, num_utterances=2, seconds=(2.0, 2.5))
    return folder
