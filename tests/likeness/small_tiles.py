"""What tests/likeness/test_kept_parts.py runs in processes of its own: the command line, with tiles
and parts so small that a small gallery has many.

small_tiles.py WRITES ARGUMENTS...: WRITES parts are written, and then the process ends as if it
were killed; 0 stands for all.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from eval import retrieval, searching, tiled_ranks
from eval.parts import Parts
from likeness.cli import main

written = 0
write = Parts._write


def counted(self: Parts, *arguments: Any) -> None:
    global written
    write(self, *arguments)
    written += 1
    if written == int(sys.argv[1]):
        os._exit(9)


if __name__ == "__main__":
    searching.TILE = tiled_ranks.TILE = 64
    retrieval.LARGE = 64
    searching.CELLS = tiled_ranks.CELLS = 64 * 16
    searching.PART_CELLS = tiled_ranks.PART_CELLS = 300 * 32
    Parts._write = counted  # type: ignore[method-assign]
    main(sys.argv[2:])
