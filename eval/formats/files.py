"""Files of others, read within bounds of their size."""

import codecs
import gzip
import hashlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from unicodedata import normalize

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.progress import report

MAX_LINE = 1 << 20  # bytes
# What is in a file may take EXPANSION times its size in memory, or 1 GiB if that is more.
EXPANSION = 100
FREE_EXPANSION = 1 << 30

_BLOCK = 1 << 24  # bytes
_MAX_JSON = 1 << 27  # bytes
# What reading a damaged file, and making a value of its fields, raises.
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)

T = TypeVar("T")
File = str | PathLike[str]


def bounded(path: Path, limit: int) -> bytes:
    """Reads the bytes of a file, a pipe or a device.

    Pipes and devices do not state their size, and some never end.

    Args:
        path: What to read.
        limit: How many bytes are allowed.

    Raises:
        LikenessError: There are more bytes than `limit`.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise LikenessError(f"{path}: it has over {limit} bytes; is it the right file?")
    return content


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_limit(size: int) -> int:
    """Returns the bytes that what is in a file of `size` bytes may take in memory."""
    return max(FREE_EXPANSION, EXPANSION * size)


def json_object(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object, as Likeness writes beside a run.

    Args:
        path: The file.

    Raises:
        LikenessError: It is no JSON in UTF-8, holds something else than an object, or is too large.
        OSError: It cannot be read.
    """
    text = bounded(path, _MAX_JSON)
    try:
        content = json.loads(text.decode())
        return cast(dict[str, Any], {**content})
    except _DAMAGED as error:
        problem = f"it holds no JSON object ({first_line(error)})"
        raise LikenessError(f"{path} is damaged: {problem}; restore or remove it") from None


def read_json(path: Path, form: str, make: Callable[[dict[str, Any]], T], otherwise: str) -> T:
    """Reads a value that was written as an object of JSON with its format.

    Args:
        path: The file: a calibration, a fusion, a PLDA, thresholds or the origin of scores.
        form: What the object has as "format".
        make: Makes the value of the other fields. What it raises becomes part of the message.
        otherwise: What the message says of another file; `{error}` stands for the reason.

    Raises:
        LikenessError: The file is damaged, or another one.
        FileNotFoundError: There is none.
    """
    try:
        fields = json_object(path)
        if fields.pop("format", None) != form:
            raise LikenessError(f"its format is not {form!r}")
        return make(fields)
    except _DAMAGED as error:
        raise LikenessError(f"{path}: {otherwise.format(error=error)}") from None


def read_mat(path: Path, name: str, *, max_bytes: int, squeeze: bool = False) -> Any:
    """Reads one variable of a MATLAB file (.mat).

    Args:
        path: The file.
        name: The variable.
        max_bytes: The most bytes that the file may have. Its outer array may have as many cells.
        squeeze: Whether dimensions of size 1 are left out.

    Returns:
        What scipy.io.loadmat gives for the variable.

    Raises:
        LikenessError: The file is larger or damaged, or contains no such variable.
    """
    from scipy.io import loadmat, whosmat

    try:
        shapes = {variable: shape for variable, shape, _ in whosmat(path)}
        if max(path.stat().st_size, math.prod(shapes[name])) > max_bytes:
            raise LikenessError(f"over {max_bytes} bytes or cells; this is no list of the data set")
        return loadmat(path, variable_names=[name], squeeze_me=squeeze)[name]
    except Exception as error:  # scipy raises many kinds for a damaged file
        raise LikenessError(f"{path}: it has no {name} to read ({first_line(error)})") from None


def refuse_device(path: Path) -> None:
    """Raises ValueError for what is there and is neither a file nor a folder.

    A pipe may never send anything, and a link to /dev/zero in a folder of others fills the memory.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise LikenessError(f"{path} is a pipe, a device or a socket; save it as a file first")


def as_stored(root: Path, name: str) -> str:
    """Returns the form of a name that the file system has.

    Ids are kept in Unicode NFC, but files that come from macOS have names in NFD.

    Args:
        root: A folder.
        name: A relative path.

    Returns:
        The path in the form that is there, which may differ from part to part; as it is if there is
        none.
    """
    if name.isascii() or os.path.lexists(root / name):
        return name
    stored = Path()
    for part in Path(name).parts:
        forms = (part, normalize("NFC", part), normalize("NFD", part))
        there = (form for form in forms if os.path.lexists(root / stored / form))
        stored /= next(there, part)
    return stored.as_posix() if os.path.lexists(root / stored) else name


def text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Reads a small text list whose lines may have any width.

    Blank lines and lines that begin with # are skipped, and files compressed by gzip are read too.

    Args:
        path: The file.

    Yields:
        The number of each line and the line itself, stripped.

    Raises:
        LikenessError: As `text_blocks`.
    """
    number = 0
    for block in text_blocks(Path(path)):
        for line in block[:-1].split(b"\n"):
            number += 1
            text = line.decode().strip()
            if text and not text.startswith("#"):
                yield number, text


def text_blocks(path: Path, block_size: int = 0) -> Iterator[bytes]:
    """Yield blocks of whole lines of a text file in UTF-8, each of which ends in a newline.

    Gzip is known by its first bytes, not by its name, and UTF-16 by its byte order mark, which is
    left out. A carriage return ends a line too.

    Args:
        path: The file.
        block_size: The bytes that are read at once; 0 means 16 MB.

    Raises:
        LikenessError: The file is no text, a damaged gzip file, expands to too much, or has too
            long a line.
    """
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw
        size = os.fstat(raw.fileno()).st_size  # 0 of a pipe
        total, rest, decoder, more = 0, b"", None, True
        while more:
            try:
                block = stream.read(block_size or _BLOCK)
                decoder, more = decoder or _decoder(block), bool(block)
                text = rest + decoder.decode(block, final=not block).encode()
                if b"\0" in text:
                    raise UnicodeError("it holds NUL characters")
            except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
                raise LikenessError(
                    f"{path}: not UTF-8 text ({first_line(error)}); save a spreadsheet as CSV, "
                    "fetch a damaged .gz again, give UTF-16 a byte order mark, or convert older "
                    "text: iconv -f LATIN1 -t UTF-8"
                ) from None
            total += len(block)
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            if len(rest) > MAX_LINE or (zipped and total > size_limit(size)):
                limits = f"over {MAX_LINE} bytes, or the file expands to over {EXPANSION} times"
                raise LikenessError(f"{path}: a line has {limits} its size; is this a list?")
            if size:
                report(f"reading {path.name}", raw.tell(), size, unit="bytes")
            if end:
                yield text[:end]
        if rest:
            yield rest + b"\n"


def _decoder(first: bytes) -> io.IncrementalNewlineDecoder:
    """What makes text of bytes that begin so, with one kind of line ends."""
    is_utf16 = first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if is_utf16 else "utf-8-sig")()
    return io.IncrementalNewlineDecoder(decoder, translate=True)
