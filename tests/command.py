"""The command line, run in this process."""

from __future__ import annotations

import pytest

from likeness.cli import main


def run(*words: object) -> int:
    """Run `likeness WORDS`, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
