"""The pickles of Qdrant's local mode, which are looked through before its client runs them."""

from __future__ import annotations

import io
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from toolkit.gallery.store import refuse_foreign

# What the client's pickles name, and the one table that they lie in.
_PICKLED = ("qdrant_client.http.models.models", "PointStruct")
_TABLE = "CREATE TABLE points (id TEXT PRIMARY KEY, point BLOB)"


def refuse_hostile(folder: Path) -> None:
    """Raises what stands against giving a folder to Qdrant's local mode, which runs its pickles.

    A pickle may call any function. Here each is gone through with nothing that could be called, and
    only the class of a point may be named.

    Raises:
        LikenessError: A file is a link, or a database of something else.
        pickle.UnpicklingError: A pickle is damaged, or names anything else.
    """
    for path in sorted(folder.glob("collection/**/storage.sqlite")):
        refuse_foreign(path)
        address = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=10)) as database:
            database.execute("PRAGMA trusted_schema=OFF")
            made = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9")
            if any(text != _TABLE for (text,) in made.fetchall()):
                raise LikenessError(
                    f"{path}: its tables are not those of a gallery; it is damaged or hostile: "
                    "restore a copy"
                )
            for (value,) in database.execute("SELECT point FROM points"):
                _Pickled(io.BytesIO(value)).load()


class _Pickled(pickle.Unpickler):
    """Goes through a pickle of Qdrant's client without importing or calling what it names."""

    def find_class(self, module: str, name: str) -> Any:
        """Gives a stand-in for the class of a point.

        Raises:
            pickle.UnpicklingError: It is anything else.
        """
        if (module, name) == _PICKLED:
            return _StandIn
        raise pickle.UnpicklingError(f"it names {module}.{name}"[:100] + ", as hostile files do")

    def persistent_load(self, pid: Any) -> Any:
        """Refuses a reference, which no point has."""
        raise pickle.UnpicklingError("it refers to something outside it")


class _StandIn:
    """In place of a point."""

    def __setstate__(self, state: Any) -> None:
        """Takes what a point has, and leaves it."""
