"""Where a gallery lies: a folder, or an address with the kind of store before it.

    FOLDER                          a SQLite file, searched exactly
    faiss:FOLDER                    the same file, searched by an index of FAISS beside it
    lance:FOLDER                    a table of LanceDB
    qdrant:FOLDER                   Qdrant's local mode
    qdrant:http://HOST:6333         a server of Qdrant
    postgresql://USER@HOST/DATABASE a server of PostgreSQL with pgvector
    postgresql:FOLDER               a PostgreSQL of our own in a folder

An address of a server may end in #NAME, so that one server keeps several galleries.
"""

from __future__ import annotations

import re
from os import PathLike
from typing import NamedTuple

from eval.errors import LikenessError

_KINDS = {
    "faiss": "faiss",
    "lance": "lance",
    "lancedb": "lance",
    "qdrant": "qdrant",
    "postgres": "postgresql",
    "postgresql": "postgresql",
}
# A single letter is a drive of Windows.
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):(.*)", re.DOTALL | re.IGNORECASE)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
# All between the first colon behind the slashes and the last @: a password that was written without
# %40 for its own @ is hidden whole.
_PASSWORD = re.compile(r"(//[^/?#:@]*:)(.*)@", re.DOTALL)
_SECRET = re.compile(
    r"([?&](?:password|sslpassword|api[-_]?key|token)=).*", re.IGNORECASE | re.DOTALL
)


class Location(NamedTuple):
    """Where a gallery lies.

    Attributes:
        kind: "folder", "faiss", "lance", "qdrant" or "postgresql".
        place: The folder, or the address of a server without #NAME.
        name: Which gallery of a server it is; "" for the one without a name.
    """

    kind: str
    place: str
    name: str = ""

    @property
    def is_server(self) -> bool:
        """Whether a server is named, and not a folder."""
        return self.kind in ("qdrant", "postgresql") and "://" in self.place


def location(text: str | PathLike[str]) -> Location:
    """Reads where a gallery lies.

    Args:
        text: A folder or an address, as above. A Path is always a folder.

    Raises:
        LikenessError: The address names no store that there is, no folder, or a gallery whose name
            is no such name.

    Example:
        >>> location("people"), location("lance:people")
        (Location(kind='folder', place='people', name=''), Location(kind='lance', place='people', \
name=''))
        >>> location("postgresql://ann@db/faces#staff").name
        'staff'
    """
    if not isinstance(text, str):
        return Location("folder", str(text.__fspath__()))
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Location("folder", text)
    kind, place = _KINDS.get(match[1]), match[2]
    on_server = place.startswith("//") if kind == "postgresql" else "://" in place
    if kind is None or (on_server and kind not in ("postgresql", "qdrant")):
        raise LikenessError(
            f"{masked(text)}: no gallery can lie there; write a folder, faiss:FOLDER, "
            "lance:FOLDER, qdrant:FOLDER, qdrant:http://HOST:6333, postgresql:FOLDER or "
            "postgresql://USER@HOST/DATABASE; a folder with a colon in its name is ./NAME"
        )
    if not place:
        raise LikenessError(f"{text} names no folder; write for example {text}people")
    if not on_server:
        folder, mark, name = place.rpartition("#")
        if kind in ("postgresql", "qdrant") and mark and "/" not in name:
            raise LikenessError(
                f"{text}: only on a server do galleries have a name behind #; write another folder "
                f"for each, for example {match[1]}:{folder}-{name}"
            )
        return Location(kind, place)
    _refuse_unescaped(text, place)
    place, mark, name = place.partition("#")
    if mark and not _NAME.fullmatch(name):
        raise LikenessError(
            f"{masked(text)}: the name of a gallery behind # has 1 to 40 small letters, digits and "
            "_, and begins with a letter"
        )
    if kind == "postgresql":
        return Location(kind, f"postgresql:{place}", name)
    if not place.startswith(("http://", "https://")):
        raise LikenessError(f"{masked(text)}: write qdrant:http://HOST:6333 or qdrant:https://...")
    if "@" in place:
        raise LikenessError(
            f"{masked(text)}: Qdrant knows no user and password; set its key as QDRANT_API_KEY in "
            "the environment"
        )
    return Location(kind, place, name)


def masked(text: str | PathLike[str]) -> str:
    """The text of a gallery's place without passwords and keys, as messages show it.

    Example:
        >>> masked("postgresql://ann:secret@db/faces?sslmode=require")
        'postgresql://ann:***@db/faces?sslmode=require'
    """
    return _PASSWORD.sub(r"\1***@", _SECRET.sub(r"\1***", str(text)))


def _refuse_unescaped(text: str, place: str) -> None:
    """Refuses an address whose password is not written as an address needs it.

    What reads addresses would take a part of the password for the host, and say it in a message.
    """
    authority = re.split(r"[/?#]", place.partition("//")[2], maxsplit=1)[0]
    if place.count("@") > authority.count("@") or authority.count("@") > 1:
        raise LikenessError(
            f"{masked(text)}: an @, /, ? or # in a password is written %40, %2F, %3F or %23; or "
            "leave the password out and set PGPASSWORD in the environment"
        )
