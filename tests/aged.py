"""Makes files of a place older than they are, as if time had passed for the store."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from toolkit.parallel.claims import Folder, Place


def age(place: Place, name: str, seconds: float, store: Any = None) -> None:
    """Make a file older. store: the bucket of the fixture `store`, where the place is in it."""
    if isinstance(place, Folder):
        written = place.written_at(name) - seconds
        os.utime(place.path / name, (written, written))
    else:
        key = place.path.partition("/")[2]
        store.keys[f"{key}/{name}"].last_modified -= timedelta(seconds=seconds)
