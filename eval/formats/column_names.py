"""What the columns of lists and tables are: by their names, or by what the user says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from eval.errors import LikenessError
from eval.formats.lists import is_number

Words = Mapping[str, tuple[str, ...]]

# What a column is, and the names that it has: in small letters, without blanks, _, - and dots.
# Trial lists, scores and pairs of files. Neither numbers nor labels are among them, because a line
# that has one is data; but a header may call its column of labels target, same or match.
TRIALS: Words = {
    "enrol": (
        *("enrol", "enroll", "enrolment", "enrollment", "enrolid", "enrollid", "enrolmentid"),
        *("enrollmentid", "model", "modelid", "reference", "referenceid", "first", "left"),
        *("path1", "patha", "file1", "filea", "filex", "filename1", "wav1", "image1", "img1"),
        *("audio1", "id1"),
    ),
    "probe": (
        *("probe", "probeid", "test", "testid", "segment", "segmentid", "verification", "second"),
        *("right", "path2", "pathb", "file2", "fileb", "filey", "filename2", "wav2", "image2"),
        *("img2", "audio2", "id2"),
    ),
    "label": (
        *("label", "labels", "key", "istarget", "issame", "same", "match", "targettype", "truth"),
        *("groundtruth", "decision"),
    ),
    "score": ("score", "scores", "llr", "similarity", "cosine"),
}
# Lists of files.
ITEMS: Words = {
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
FURTHER = ("start", "end", "sex", "age", "session", "group")  # what a pattern of labels may name
_MAX_NAMED = 40  # columns that an error names
_MAX_FURTHER = 40  # columns of the user's own that are carried along


def role_of(name: str, words: Words = ITEMS) -> str | None:
    """Returns what a column of this name is, or None.

    Example:
        >>> role_of("Speaker_ID"), role_of("File name"), role_of("accent")
        ('label', 'path', None)
        >>> role_of("Model-ID", TRIALS)
        'enrol'
    """
    bare = re.sub(r"[\s_.-]", "", name).lower()
    return next((role for role, names in words.items() if bare in names), None)


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


def parse_columns(text: str | Mapping[str, str], words: Words = ITEMS) -> dict[str, str]:
    """Returns which column is which, as it is stated on the command line.

    Args:
        text: ROLE=COLUMN, several with commas between them; or the same as a mapping.
        words: The roles that there are.

    Raises:
        LikenessError: A part is not ROLE=COLUMN, or a role is not known or there twice.

    Example:
        >>> parse_columns("label=spk,path=wav file")
        {'label': 'spk', 'path': 'wav file'}
    """
    if isinstance(text, Mapping):
        parts = [(str(role), str(name)) for role, name in text.items()]
    else:
        split = re.split(rf",(?=\s*(?:{'|'.join(words)})\s*=)", text) if text else []
        parts = [(part.partition("=")[0].strip(), part.partition("=")[2].strip()) for part in split]
    wrong = [f"{role}={name}" for role, name in parts if role not in words or not name]
    if wrong:
        raise LikenessError(
            f"columns: {wrong[0]!r} is not ROLE=COLUMN; write it as in label=spk, with one of "
            f"{', '.join(words)} before the sign"
        )
    if len(dict(parts)) < len(parts):
        raise LikenessError(f"columns: {text!r} names a role twice; leave out one of them")
    return dict(parts)


def choose(
    names: Sequence[str],
    stated: Mapping[str, str],
    where: str,
    words: Words = ITEMS,
    needed: Sequence[str] = ("path",),
) -> dict[str, int]:
    """Returns the place of the column of each role.

    Args:
        names: The names of all columns, in their order.
        stated: Role -> column, where somebody said it. If all are numbers, they count the columns
            from 1, and no names are looked at.
        where: The table, with which messages begin.
        words: The roles, and the names that their columns have.
        needed: The roles that have to be there.

    Returns:
        Role -> place from 0.

    Raises:
        LikenessError: A column that was stated is not there, or no column or several may be of a
            role. The columns are listed.

    Example:
        >>> choose(["wav", "spk", "text"], {}, "a.csv")
        {'path': 0, 'label': 1}
        >>> choose(["file", "speaker", "class"], {"label": "class"}, "a.csv")
        {'label': 2, 'path': 0}
    """
    listed = ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")
    places: dict[str, int] = {}
    numbered = by_number(stated)
    for role, name in stated.items():
        place = int(name) - 1 if numbered else names.index(name) if name in names else -1
        if not 0 <= place < len(names):
            raise LikenessError(
                f"{where}: there is no column {name!r} for {role}; the columns are ({listed})"
            )
        if not numbered and names.count(name) > 1:
            raise LikenessError(
                f"{where}: {names.count(name)} columns are called {name!r}; rename one of them"
            )
        places[role] = place
    candidates: dict[str, list[int]] = {}
    for place, name in enumerate(names if not numbered else ()):
        likely = role_of(name, words)
        if likely is not None and likely not in stated and place not in places.values():
            candidates.setdefault(likely, []).append(place)
    for role, of_role in candidates.items():
        if len(of_role) > 1:
            these = [names[place] for place in of_role]
            raise LikenessError(
                f"{where}: {len(these)} columns may be the {role} ({', '.join(these)}), of the "
                f"columns ({listed}); say which with --columns {role}={these[0]}"
                f"{', or rename one' if len(set(these)) < len(these) else ''}"
            )
        places[role] = of_role[0]
    missing = [role for role in needed if role not in places]
    if missing:
        raise LikenessError(
            f"{where}: no column is known to be the {missing[0]}; its columns are ({listed}): say "
            f"which is with --columns {missing[0]}={names[0] if names else 'NAME'}"
        )
    return places


def with_further(
    names: Sequence[str], places: Mapping[str, int], stated: Mapping[str, str]
) -> dict[str, int]:
    """Returns the places of all columns of a list of files: the known ones, and the user's own.

    Args:
        names: The names of all columns, in their order.
        places: Role -> place, from `choose`.
        stated: As for `choose`. Where columns are stated by number there are no names.

    Returns:
        The places, and of the first 40 further columns that have a name of their own its place.

    Example:
        >>> with_further(["wav", "spk", "device"], {"path": 0, "label": 1}, {})
        {'path': 0, 'label': 1, 'device': 2}
    """
    own = {
        name: place
        for place, name in enumerate(names if not by_number(stated) else ())
        if place not in places.values() and name not in ITEMS and name and names.count(name) == 1
    }
    return {**places, **dict(list(own.items())[:_MAX_FURTHER])}


def by_number(stated: Mapping[str, str]) -> bool:
    """Returns whether columns are stated by their numbers, as in a table without a header."""
    return bool(stated) and all(name.isdecimal() for name in stated.values())


# The layouts of lines without a header.
TRIAL_LAYOUTS = (("enrol", "probe"), ("label", "enrol", "probe"), ("enrol", "probe", "label"))
SCORE_LAYOUTS = (
    ("score", "enrol", "probe"),
    ("enrol", "probe", "score"),
    ("enrol", "probe", "score", "label"),
    ("label", "enrol", "probe", "score"),
    ("score", "enrol", "probe", "label"),
)
BARE_LAYOUTS = (("label", "score"), ("score", "label"))  # of scores whose ids are not known
# The kinds of labels in small letters. Those of a column are all of one kind.
LABELS: tuple[dict[str, bool], ...] = (
    {"1": True, "0": False},
    {"target": True, "nontarget": False},
    {"tgt": True, "imp": False},
    {"true": True, "false": False},
    {"yes": True, "no": False},
)
# These are labels in a column that a header calls so; elsewhere they may be names of columns.
NAMED_LABELS = (*LABELS, {"same": True, "different": False}, {"match": True, "nonmatch": False})
LABEL_HINT = "labels must be 1 0, target nontarget, tgt imp, true false or yes no, of one kind"


def is_label(text: str) -> bool:
    """Returns whether a text is a label of trials."""
    return any(text.lower() in kind for kind in LABELS)


def trial_header(
    fields: Sequence[str], layouts: Sequence[tuple[str, ...]]
) -> dict[str, int] | None:
    """Returns the columns that a header of trials or scores states, None for a line of data.

    A line with a label or a number is never a header.

    Args:
        fields: The fields of the line.
        layouts: The roles that there may be together.

    Example:
        >>> trial_header(["file_x", "file_y", "Decision"], TRIAL_LAYOUTS)
        {'enrol': 0, 'probe': 1, 'label': 2}
        >>> trial_header(["a", "b"], TRIAL_LAYOUTS)
    """
    roles = [role_of(field, TRIALS) for field in fields]
    lower = [field.lower() for field in fields]
    if "target" in lower and "label" not in roles and lower.count("target") == 1:
        roles[lower.index("target")] = "label"
        if None in roles:
            return None
    elif any(is_label(field) or is_number(field) for field in fields):
        return None
    places = {role: place for place, role in enumerate(roles) if role is not None}
    named = [role for role in roles if role is not None]
    allowed = {frozenset(layout) for layout in layouts}
    return places if len(places) == len(named) and frozenset(places) in allowed else None
