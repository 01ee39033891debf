"""What the columns of lists and tables are: by their names, or by what the user says."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from likeness.eval.errors import LikenessError
from likeness.eval.formats.tables import is_number
from likeness.eval.option import if_option

Words = Mapping[str, tuple[str, ...]]
ColumnNames = str | Mapping[str, str]
"""Such as "enrol=a,probe=b,label=c"; or the same as a mapping."""


def _words(**names: str) -> Words:
    return {role: tuple(text.split()) for role, text in names.items()}


# What a column is, and the names that it has: in small letters, without blanks, _, - and dots.
# Trial lists, scores and pairs of files.
TRIALS = _words(
    enrol="enrol enroll enrolment enrollment enrolid enrollid enrolmentid enrollmentid model "
    "modelid reference referenceid first left path1 patha file1 filea filex filename1 wav1 image1 "
    "img1 audio1 id1 prompt promptid",
    probe="probe probeid test testid segment segmentid verification second right path2 pathb "
    "file2 fileb filey filename2 wav2 image2 img2 audio2 id2 clone cloneid generated",
    label="label labels key target istarget issame same match targettype truth groundtruth "
    "decision",
    score="score scores llr similarity cosine",
)
# Lists of files.
ITEMS = _words(
    path="path file filename filepath wav wavfile wavpath audio audiofile audiopath audiofilepath "
    "image imagefile imagepath img imgpath photo",
    label="label speaker speakerid spk spkid subject subjectid class classid identity identityid "
    "person personid clientid",
    id="id itemid utt uttid utterance utteranceid",
    start="start startseconds starttime begin onset offset offsetseconds",
    end="end endseconds endtime stop",
    duration="duration durationseconds dur",
    channel="channel channelid chan",
    sex="sex gender",
    age="age",
    session="session sessionid",
    group="group groupid",
)
# Embeddings; the columns of one number each are one column here, see `dimensions`.
EMBEDDINGS = _words(
    id="id ids itemid utt uttid utterance utteranceid key keys name names template templateid",
    vector="vector vectors embedding embeddings emb embs matrix feature features feat feats "
    "xvector xvectors",
)
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
        text: ROLE=COLUMN, several with commas between them; or the same as a mapping. A role may
            have any name that such a column may have: first=a is enrol=a.
        words: The roles that there are.

    Raises:
        LikenessError: A part is not ROLE=COLUMN, or a role is not known.

    Example:
        >>> parse_columns("label=spk,path=wav file")
        {'label': 'spk', 'path': 'wav file'}
        >>> parse_columns("first=a,second=b,same=c", TRIALS)
        {'enrol': 'a', 'probe': 'b', 'label': 'c'}
    """
    if isinstance(text, str):
        parts = [part.partition("=") for part in re.split(r",(?=\s*\w+\s*=)", text) if part]
        pairs = [(role.strip(), name.strip()) for role, _, name in parts]
    else:
        pairs = [(role, str(name)) for role, name in text.items()]
    stated: dict[str, str] = {}
    for said, name in pairs:
        roles = [role for role in words if said == role or role_of(said, {role: words[role]})]
        role = said if said in words else roles[0] if len(roles) == 1 else ""
        if not role or not name or role in stated:
            raise LikenessError(
                f"columns: {said!r} is no ROLE=COLUMN, or is there twice; write each of "
                f"{', '.join(words)} once at most"
            )
        stated[role] = name
    return stated


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
        LikenessError: A role that is stated or needed has no column, or one may have several.
            The columns are listed.

    Example:
        >>> choose(["wav", "spk", "text"], {}, "a.csv")
        {'path': 0, 'label': 1}
        >>> choose(["file", "speaker", "class"], {"label": "class"}, "a.csv")
        {'path': 0, 'label': 2}
    """
    places: dict[str, int] = {}
    for role in words:
        name = stated.get(role)
        if by_number(stated):
            fitting = [int(name) - 1] if name and 0 < int(name) <= len(names) else []
        elif name is not None:
            fitting = [place for place, other in enumerate(names) if other == name]
        else:
            fitting = [
                place
                for place, other in enumerate(names)
                if role_of(other, words) == role and other not in stated.values()
            ]
        if len(fitting) == 1:
            places[role] = fitting[0]
        elif fitting or role in stated or role in needed:
            likely = [names[place] for place in fitting] or [*names, "NAME"]
            stated_as = shlex.quote(f"{role}={likely[0]}")
            shown = ", ".join(names[:_MAX_NAMED])
            asked = f"the {role} {name!r}" if name else f"the {role}"
            raise LikenessError(
                f"{where}: {len(fitting) or 'none'} of its columns ({shown}) may be {asked}; name "
                f"it in the header{if_option(f', or say which, as in --columns {stated_as}')}"
            )
    return places


def dimensions(names: Sequence[str], numeric: Collection[int]) -> dict[str, list[int]]:
    """Returns the places of each column, where columns that are numbered alike are one.

    Args:
        names: The names of all columns, in their order.
        numeric: The places of those that hold one number a row.

    Example:
        >>> dimensions(["utt", "emb_0", "emb_1", "age"], {1, 2, 3})
        {'utt': [0], 'age': [3], 'emb': [1, 2]}
    """
    numbered: dict[str, dict[int, int]] = {}
    for place in sorted(numeric):
        if match := re.fullmatch(r"(.*?)[\s_.-]*(\d{1,9})", names[place]):
            numbered.setdefault(match[1], {})[int(match[2])] = place
    several = {name: [of[i] for i in sorted(of)] for name, of in numbered.items() if len(of) > 1}
    joined = {place for places in several.values() for place in places}
    columns = {name: [place] for place, name in enumerate(names) if place not in joined}
    for name, places in several.items():
        is_free = name and name not in columns
        columns[name if is_free else f"{names[places[0]]} to {names[places[-1]]}"] = places
    return columns


def columns_of_embeddings(
    names: Sequence[str],
    stated: Mapping[str, str],
    where: str,
    by_type: Mapping[str, Collection[str]],
    needed: Sequence[str] = ("id", "vector"),
) -> dict[str, str]:
    """Returns the names of the columns, or arrays, of the ids and of the vectors.

    Args:
        names: Those of all columns.
        stated: As for `choose`.
        where: The file, with which messages begin.
        by_type: Role -> the names that may have it by what they hold. Where none is called like
            the role, the only one of these is taken.
        needed: The roles that have to be there.

    Example:
        >>> by_type = {"id": ["wav", "speaker"], "vector": ["resnet"]}
        >>> columns_of_embeddings(["wav", "speaker", "resnet"], {}, "e.parquet", by_type)
        {'vector': 'resnet', 'id': 'wav'}
    """
    stated = {
        role: name if name in names else name.rstrip(" _.-*") for role, name in stated.items()
    }
    places = choose(names, stated, where, EMBEDDINGS, needed=())
    chosen = {role: names[place] for role, place in places.items()}
    for role in ("vector", "id"):
        fitting = [name for name in by_type[role] if name not in chosen.values()]
        usual = {name: role_of(name) or role_of(name.removesuffix("s")) for name in fitting}
        paths = [name for name in fitting if usual[name] == "path"]
        others = [name for name in fitting if usual[name] != "label"]
        if role not in chosen and len(only := paths or others) == 1:
            chosen[role] = only[0]
    if missing := [role for role in needed if role not in chosen]:
        choose(names, stated, where, EMBEDDINGS, missing)  # says which columns there are
    return chosen


def split_columns(columns: ColumnNames, *files: Words) -> list[dict[str, str]]:
    """Returns which column is which in each of several files, for all of which one text says it.

    Example:
        >>> split_columns("enrol=a,vector=emb", TRIALS, EMBEDDINGS)
        [{'enrol': 'a'}, {'vector': 'emb'}]
    """
    stated = parse_columns(columns, {role: names for of in files for role, names in of.items()})
    return [{role: name for role, name in stated.items() if role in words} for words in files]


def columns_of_items(names: Sequence[str], stated: Mapping[str, str], where: str) -> dict[str, int]:
    """Returns the places of all columns of a list of files: the known ones, and the user's own.

    Args:
        names: The names of all columns, in their order.
        stated: As for `choose`. Where columns are stated by number there are no names.
        where: The list, with which messages begin.

    Returns:
        The places of `choose`, and of the first 40 further columns that have a name of their own.

    Example:
        >>> columns_of_items(["wav", "spk", "device"], {}, "a.csv")
        {'path': 0, 'label': 1, 'device': 2}
    """
    places = choose(names, stated, where)
    own = {
        name: place
        for place, name in enumerate(names if not by_number(stated) else ())
        if place not in places.values() and name not in ITEMS and name and names.count(name) == 1
    }
    return places | dict(list(own.items())[:_MAX_FURTHER])


def by_number(stated: Mapping[str, str]) -> bool:
    """Returns whether columns are stated by their numbers, as in a table without a header."""
    return bool(stated) and all(name.isdecimal() for name in stated.values())


# The layouts of lines without a header.
_SCORED = (
    *("enrol probe score label", "enrol probe label score"),
    *("label enrol probe score", "score enrol probe label"),
)
TRIAL_LAYOUTS = ("enrol probe", "label enrol probe", "enrol probe label", *_SCORED)
SCORE_LAYOUTS = ("score enrol probe", "enrol probe score", *_SCORED)
# The kinds of labels in small letters. Those of a column are all of one kind.
LABELS: tuple[dict[str, bool], ...] = (
    {"1": True, "0": False},
    {"target": True, "nontarget": False, "spoof": False},
    {"tgt": True, "imp": False},
    {"true": True, "false": False},
    {"yes": True, "no": False},
    {"same": True, "different": False},
    {"match": True, "nonmatch": False},
)
IS_TARGET = {label: value for kind in LABELS for label, value in kind.items()}


def is_label(text: str) -> bool:
    """Returns whether a text is a label of trials."""
    return text.lower() in IS_TARGET


def is_trial_header(
    fields: Sequence[str], needed: Sequence[str] = ("enrol", "probe"), *, partly: bool = False
) -> bool:
    """Returns whether fields are names of columns of trials or scores, and no line of data.

    Args:
        fields: The fields of the line.
        needed: The roles that a header has, each once.
        partly: Whether any of these roles will do.

    Example:
        >>> is_trial_header(["file_x", "file_y", "Decision"])
        True
        >>> is_trial_header(["enrol", "probe", "0.5"])
        False
    """
    roles = [role_of(field, TRIALS) for field in fields]
    others = [field for field, role in zip(fields, roles, strict=True) if role is None]
    if any(is_label(field) or is_number(field) for field in others):
        return False
    known = [role for role in roles if role is not None]
    is_whole = set(needed) <= set(known) and len(set(known)) == len(known)
    return is_whole or (partly and bool(set(known) & set(needed)))
