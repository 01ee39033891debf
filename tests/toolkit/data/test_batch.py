"""Reading processes hand their batches over by sockets, whose paths have at most 103 bytes."""

import os
from pathlib import Path

import pytest

from tests.scripts import program

MAKES = """
import multiprocessing.util
from likeness.toolkit.data.batch import make_room_for_sockets

make_room_for_sockets()
folder = multiprocessing.util.get_temp_dir()
make_room_for_sockets()
assert multiprocessing.util.get_temp_dir() == folder
print(folder)
"""


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_sockets_have_a_short_path_and_go_with_the_process(name, tmp_path):
    temporary = tmp_path / name
    temporary.mkdir()
    folder = Path(program("-c", MAKES, TMPDIR=str(temporary)).stdout.strip())
    assert len(os.fsencode(folder)) < 90
    assert not folder.exists()
    assert not list(temporary.iterdir())
