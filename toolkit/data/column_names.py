"""The columns of a table of files, which are known by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eval.errors import LikenessError

# What a column is, and the names that it has: in small letters, without blanks, _, - and dots.
_NAMES = {
    "path": (
        *("path", "file", "filename", "filepath", "wav", "wavfile", "wavpath", "audio"),
        *("audiofile", "audiopath", "audiofilepath", "image", "imagefile", "imagepath", "img"),
        *("imgpath", "photo"),
    ),
    "label": (
        *("label", "speaker", "speakerid", "spk", "spkid", "subject", "subjectid", "class"),
        *("classid", "identity", "identityid", "person", "personid", "clientid"),
    ),
    "id": ("id", "itemid", "utt", "uttid", "utterance", "utteranceid"),
    "start": ("start", "startseconds", "starttime", "begin", "onset"),
    "end": ("end", "endseconds", "endtime", "stop"),
    "duration": ("duration", "durationseconds", "dur"),
    "sex": ("sex", "gender"),
    "age": ("age",),
    "session": ("session", "sessionid"),
    "group": ("group", "groupid"),
}
ROLES = tuple(_NAMES)
FURTHER = ("start", "end", "sex", "age", "session", "group")  # what Items carry beside the label
_ROLE_OF = {name: role for role, names in _NAMES.items() for name in names}
_MAX_NAMED = 40  # columns that an error names


def role_of(name: str) -> str | None:
    """Returns what a column of this name is, or None.

    Example:
        >>> role_of("Speaker_ID"), role_of("File name"), role_of("accent")
        ('label', 'path', None)
    """
    return _ROLE_OF.get(re.sub(r"[\s_.-]", "", name).lower())


def is_header(fields: Sequence[str]) -> bool:
    """Returns whether the first fields of a table are names of columns, of which one has the paths.

    Example:
        >>> is_header(["wav", "speaker"]), is_header(["wav/a.wav", "ann"])
        (True, False)
    """
    roles = [role_of(field) for field in fields]
    return "path" in roles and not any(
        role is None and ("/" in field or "\\" in field)
        for role, field in zip(roles, fields, strict=True)
    )


def parse_columns(text: str | Mapping[str, str]) -> dict[str, str]:
    """Returns which column is which, as it is stated on the command line.

    Args:
        text: ROLE=COLUMN, several with commas between them; or the same as a mapping.

    Raises:
        LikenessError: A part is not ROLE=COLUMN, or a role is not known or there twice.

    Example:
        >>> parse_columns("label=spk,path=wav file")
        {'label': 'spk', 'path': 'wav file'}
    """
    if isinstance(text, Mapping):
        parts = [(str(role), str(name)) for role, name in text.items()]
    elif not isinstance(text, str):
        raise LikenessError(
            f"columns is a {type(text).__name__}; give a text such as 'label=spk', or a mapping"
        )
    else:
        split = re.split(rf",(?=\s*(?:{'|'.join(ROLES)})\s*=)", text) if text else []
        bad = [part for part in split if not all(part.partition("="))]
        if bad:
            raise LikenessError(
                f"columns: {bad[0]!r} is not ROLE=COLUMN; write it as in label=spk, with one of "
                f"{', '.join(ROLES)} before the sign"
            )
        parts = [(part.partition("=")[0].strip(), part.partition("=")[2].strip()) for part in split]
    unknown = [role for role, _ in parts if role not in ROLES]
    if unknown:
        raise LikenessError(f"columns: {unknown[0]!r} is not one of {', '.join(ROLES)}; correct it")
    if len(dict(parts)) < len(parts):
        raise LikenessError(f"columns: {text!r} names a role twice; leave out one of them")
    return dict(parts)


def choose(names: Sequence[str], stated: Mapping[str, str], where: str) -> dict[str, int]:
    """Returns the place of the column of each role.

    Args:
        names: The names of all columns, in their order.
        stated: Role -> column, where somebody said it. If all are numbers, they count the columns
            from 1, and no names are looked at.
        where: The table, with which messages begin.

    Returns:
        Role -> place from 0. The paths are always there.

    Raises:
        LikenessError: A column that was stated is not there, no column or several may be the paths,
            or several may be of another role. The columns are listed.

    Example:
        >>> choose(["wav", "spk", "text"], {}, "a.csv")
        {'path': 0, 'label': 1}
        >>> choose(["file", "speaker", "class"], {"label": "class"}, "a.csv")
        {'label': 2, 'path': 0}
    """
    listed = ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
    if by_number(stated):
        places = {role: int(name) - 1 for role, name in stated.items()}
        outside = [place + 1 for place in places.values() if not 0 <= place < len(names)]
        if outside or "path" not in places:
            raise LikenessError(
                f"{where}: column {outside[0]} does not exist; it has {len(names)} columns"
                if outside
                else f"{where}: no column has the paths; add path=NUMBER to the columns"
            )
        return places
    places = {}
    for role, name in stated.items():
        if name not in names:
            raise LikenessError(
                f"{where}: there is no column {name!r} for {role}; the columns are ({listed})"
            )
        if names.count(name) > 1:
            raise LikenessError(
                f"{where}: {names.count(name)} columns are called {name!r}; rename one of them"
            )
        places[role] = names.index(name)
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        likely = role_of(name)
        if likely is not None and likely not in stated and place not in places.values():
            found.setdefault(likely, []).append(place)
    for role, candidates in found.items():
        if len(candidates) > 1:
            these = [names[place] for place in candidates]
            raise LikenessError(
                f"{where}: {len(these)} columns may be the {role} ({', '.join(these)}), of the "
                f"columns ({listed}); say which with --columns {role}={these[0]}"
                f"{', or rename one' if len(set(these)) < len(these) else ''}"
            )
        places[role] = candidates[0]
    if "path" not in places:
        raise LikenessError(
            f"{where}: no column is known to name the files; its columns are ({listed}): say which "
            f"does with --columns path={names[0] if names else 'NAME'}"
        )
    if "duration" in places and ("start" not in places or "end" in places):
        if "duration" in stated:
            raise LikenessError(
                f"{where}: a duration gives the end where there is a start and no end; leave "
                f"duration={stated['duration']} out of the columns"
            )
        del places["duration"]  # it is that of the whole file
    return places


def by_number(stated: Mapping[str, str]) -> bool:
    """Returns whether columns are stated by their numbers, as in a table without a header."""
    return bool(stated) and all(name.isdecimal() for name in stated.values())
