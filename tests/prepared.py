"""Models that `likeness prepare` makes of what pip fetches."""

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

import likeness


def prepared(request: pytest.FixtureRequest, work: Callable[[], object]) -> Path:
    """The user's folder of models after `work`, once for all runs of the tests on a machine."""
    assert request.config.cache is not None
    folder = request.config.cache.mkdir("likeness-models")
    with FileLock(folder / ".lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIKENESS_MODELS", str(folder))
        try:
            work()
        except likeness.LikenessError as error:
            if "pip cannot fetch" not in str(error):
                raise
            pytest.skip(str(error))
    return folder
