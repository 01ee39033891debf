"""Files where values are needed: the measurements of the front door take either.

`Embeddings` and `read_embeddings` are public names of `likeness`. Rows of results become tables of
text, Parquet and JSON here.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from likeness.eval import types
from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings as stored
from likeness.eval.formats.column_names import role_of
from likeness.eval.formats.provenance import sha256
from likeness.eval.formats.subjects import read_mapping, read_numbers
from likeness.eval.reports.media import IMAGES, SOUNDS, Media, Source, Stretch, media_of_folder
from likeness.eval.scoring.templates import read_enrolment
from likeness.eval.types import UNKNOWN, name_first
from likeness.presence import check_written

if TYPE_CHECKING:
    from likeness.eval.items.items import Item

File = str | PathLike[str]
ColumnNames = str | Mapping[str, str]  # "enrol=a,probe=b,label=c"
Names = File | Mapping[str, str]
Models = File | Mapping[str, Sequence[str]]
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_COLUMN = re.compile(r"(?P<file>.+):(?P<column>[^:<]+)(?P<limit><[^<]+)?")


class Embeddings(types.Embeddings):
    """Raw embeddings of N items: the norm carries quality and is kept.

    Attributes:
        ids: N distinct names.
        matrix: (N, D) float32, finite.
        meta: texts that travel with a file: the model's digest, its modality and similarity.

    Raises:
        LikenessError: a wrong shape, repeated ids, or rows that are not finite.

    Example:
        >>> embeddings = Embeddings(("ann", "bob"), [[3, 4], [0, 2]])
        >>> len(embeddings), embeddings.norms.tolist()
        (2, [5.0, 2.0])
    """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the embeddings to a file, whole or not at all.

        Args:
            path: where to write. The ending chooses the format: .npz, .ark (with .scp) or
                .parquet.

        Raises:
            LikenessError: another ending, or ids that the format cannot hold.

        Example:
            >>> Embeddings(("ann",), [[3, 4]]).save("ann.npz")
            >>> read_embeddings("ann.npz").matrix.tolist()
            [[3.0, 4.0]]
        """
        stored.write(Path(path), self)


def read_embeddings(path: str | PathLike[str]) -> Embeddings:
    """Read embeddings from a file.

    Args:
        path: an .npz, .ark, .scp or .parquet file.

    Returns:
        The embeddings. The float32 numbers of a file come back bit for bit.

    Raises:
        FileNotFoundError: the file does not exist.
        LikenessError: the file is of another kind, or damaged.
    """
    read = stored.read(Path(path))
    return Embeddings(read.ids, read.matrix, read.meta)


def files_in(*given: Any) -> list[Path]:
    """The files among arguments that take files or values, one or several."""
    files = []
    for value in given:
        if isinstance(value, str | PathLike):
            column = _COLUMN.fullmatch(str(value))  # of a list, as in "items.csv:sex"
            paths = [Path(value), *([Path(column["file"])] if column else [])]
            files += [path for path in paths if path.is_file()][:1]
        elif isinstance(value, Mapping):
            files += files_in(*value.values())
        elif isinstance(value, Sequence):
            files += files_in(*value)
    return files


def digests_of(files: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its path."""
    return {str(path): sha256(path) for path in files}


def embeddings_of(embeddings: File | types.Embeddings) -> types.Embeddings:
    """The embeddings, read if they are in a file."""
    if isinstance(embeddings, types.Embeddings):
        return embeddings
    return stored.read(Path(embeddings))


def names_of(names: Names | None) -> Mapping[str, str] | None:
    """The subject, class or group of each id, read if they are in a file."""
    if names is None or isinstance(names, Mapping):
        return names
    return read_mapping(Path(names))


def groupings_of(groups: Names | Sequence[Names] | None) -> dict[str, Mapping[str, str]]:
    """What the groups are -> the group of each id or subject, of one grouping or several.

    Args:
        groups: Of each a mapping, a list `id group`, or the column of a list of items, as in
            "items.csv:sex" or "items.csv:age<18".

    Raises:
        LikenessError: There is no such file or column, or two are called the same.
    """
    listed = [groups] if isinstance(groups, str | PathLike | Mapping) else list(groups or ())
    by_name: dict[str, Mapping[str, str]] = {}
    for grouping in listed:
        column = None if isinstance(grouping, Mapping) else _COLUMN.fullmatch(str(grouping))
        if isinstance(grouping, Mapping) or column is None or Path(grouping).exists():
            by, group_of = "", names_of(grouping) or {}
        else:
            by = "".join(part.strip() for part in column.groups("")[1:])
            group_of = _groups_in(Path(column["file"]), column)
        if by in by_name:
            raise LikenessError(f"several groupings are called {by!r}; evaluate them one by one")
        by_name[by] = group_of
    return by_name


def _groups_in(path: Path, column: re.Match[str]) -> dict[str, str]:
    """The groups of items by a column of their list."""
    from likeness.eval.items.listing import list_items
    from likeness.modalities.folders import suffixes_of

    suffixes = [*suffixes_of("speaker"), *suffixes_of("image")]
    items = list_items(path, suffixes=suffixes, missing="leave")
    name = column["column"].strip()
    name = name if items.has(name) else role_of(name) or name  # Gender is read as sex
    values = [UNKNOWN if value is None else str(value) for value in items.column(name)]
    if column["limit"]:
        values = [_side(value, column) for value in values]
    return dict(zip(items.ids, values, strict=True))


def _side(value: str, column: re.Match[str]) -> str:
    """On which side of a limit a number is."""
    if value == UNKNOWN:
        return value
    limit = column["limit"][1:].strip()
    try:
        sign = "<" if float(value) < float(limit) else ">="
    except ValueError:
        raise LikenessError(
            f"groups {column[0]}: {value!r} and {limit!r} are to be compared, and both must be "
            "numbers"
        ) from None
    return f"{column['column'].strip()}{sign}{limit}"


def quality_of(quality: File | Mapping[str, float]) -> Literal["norm"] | Mapping[str, float]:
    """The quality of each id, read if it is in a file.

    Args:
        quality: "norm", which stays as it is; a mapping; or a list `id quality`.
    """
    if isinstance(quality, Mapping):
        return quality
    if isinstance(quality, str) and quality == "norm":
        return "norm"
    return read_numbers(Path(quality), "quality")


def models_of(models: Models | None) -> Mapping[str, Sequence[str]] | None:
    """The items that enrol each model, read if they are in a file."""
    if models is None or isinstance(models, Mapping):
        return models
    return read_enrolment(Path(models))


def names_of_files(paths: Sequence[Path], kind: str) -> list[str]:
    """Give each file a short distinct name: its own without its ending, else its whole path.

    Args:
        paths: The files.
        kind: What the files hold, for the error.

    Raises:
        LikenessError: A file is there twice.

    Example:
        >>> names_of_files([Path("runs/a.txt"), Path("runs/b.txt.gz")], "score")
        ['a', 'b']
        >>> names_of_files([Path("a/scores.txt"), Path("b/scores.txt")], "score")
        ['a/scores.txt', 'b/scores.txt']
    """
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        twice = name_first(name for name in dict.fromkeys(names) if names.count(name) > 1)
        raise LikenessError(f"the same {kind} file is given twice ({twice}); leave one out")
    return names


def media_of(source: File | Mapping[str, Path] | None) -> Media:
    """The media in a folder, of a list or of a table.

    Args:
        source: a folder, as `media_of_folder` takes it; or a list, a table, a Kaldi folder or an
            .rttm file (see `likeness.eval.items.listing`), whose items may be stretches of
            recordings; a mapping from ids to files; or None for no media.

    Raises:
        LikenessError: there is no such file or folder. The list or table cannot be understood.
    """
    from likeness.eval.items.listing import is_kaldi_folder, list_items

    if source is None or isinstance(source, Mapping):
        return Media((source or {}).get)
    source = Path(source)
    if source.is_dir() and not is_kaldi_folder(source):
        return media_of_folder(source)
    return media_of_items(list_items(source, suffixes=[*SOUNDS, *IMAGES], missing="leave"))


def media_of_items(items: Sequence[Item]) -> Media:
    """The media of items by their ids. Those inside tar shards have none.

    Example:
        >>> from likeness.eval.items.items import Item
        >>> item = Item("ann/1", Path("ann.wav"), "ann", stretch=(1.0, 2.5))
        >>> media_of_items([item]).show("ann/2")
        Markup('')
    """
    rows = {item.id: row for row, item in enumerate(items)}

    def find(id: str) -> Source:
        item = items[rows[id]] if id in rows else None
        if item is None or item.span is not None:
            return None
        return item.path if item.stretch is None else Stretch(item.path, *item.stretch)

    return Media(find)


def table_text(columns: Sequence[str], rows: Iterable[Iterable[object]], delimiter: str) -> str:
    """Give rows as a table of text with a head; a value that is not known is left empty.

    Args:
        columns: The names of the columns.
        rows: The values of each row; None is not known.
        delimiter: What separates the values.

    Example:
        >>> print(table_text(["id", "same"], [["a", True], ["b", None]], ","), end="")
        id,same
        a,true
        b,
    """
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if value is None else _shown(value) for value in row])
    return file.getvalue()


def _shown(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write rows whole or not at all, separated as the ending of the file says.

    Args:
        path: The file, which ends in .csv or .tsv.
        columns: The names of the columns.
        rows: The values of each row; None is not known.

    Raises:
        LikenessError: The file has another ending, or its folder does not exist.
    """
    from likeness.eval.formats.writing import write_text

    check_written(path, _DELIMITERS)
    write_text(path, table_text(columns, rows, _DELIMITERS[path.suffix.lower()]))
