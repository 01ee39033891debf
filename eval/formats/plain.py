"""Plain lines of text, read and written by pyarrow.

Its reader of CSV takes a fifth of the time of Python's own `split`, and its writer a seventh of
that of `repr` and `join`. The reader is asked only for lines that leave no choice: one separator
between two fields, and no quotation marks with a meaning. What it gives is checked, and whoever
asks has a tolerant way for all other lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.progress import report
from eval.types import Bools, Floats, Ints

_BOM = b"\xef\xbb\xbf"
_BLOCK = 1 << 30  # bytes written at a time, at most
_ROWS = 1 << 17  # and rows
_DECIMALS = 1e-4, 1e9  # between these Python and pyarrow write a fraction in the same way


class Coded(NamedTuple):
    """The fields of one column in a block.

    Attributes:
        keys: The distinct fields, in the order of their first occurrence.
        codes: The number of each field among the keys.
    """

    keys: list[bytes]
    codes: Ints


def read(
    block: bytes, separator: bytes | None, numeric: Sequence[bool], longest: int
) -> list[Coded | Floats] | None:
    r"""Reads the columns of whole lines.

    Blanks around a field belong to it here. Whoever asks has to look for `odd` fields.

    Args:
        block: The lines; the last one ends in a newline too.
        separator: What lies between two fields; None stands for single blanks.
        numeric: For each column whether its fields are numbers.
        longest: The most bytes that a line may have.

    Returns:
        The columns, or None where the lines are not plain or a number is none.

    Example:
        >>> read(b"a 0.5\nb 1e3\n", None, [False, True], 100)
        [Coded(keys=[b'a', b'b'], codes=array([0, 1], dtype=int32)), array([5.e-01, 1.e+03])]
    """
    text = _plain(block, longest)
    if text is None:
        return None
    import pyarrow
    from pyarrow import csv

    coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.binary())
    names = [str(c) for c in range(len(numeric))]
    types = [pyarrow.float64() if is_number else coded for is_number in numeric]
    try:
        table = csv.read_csv(
            pyarrow.BufferReader(text),
            csv.ReadOptions(column_names=names, block_size=len(text) + 1),
            csv.ParseOptions(
                delimiter=(separator or b" ").decode(), quote_char=False, double_quote=False
            ),
            csv.ConvertOptions(
                check_utf8=False, column_types=dict(zip(names, types, strict=True)), null_values=[]
            ),
        )
    except pyarrow.ArrowInvalid:
        return None  # fields that are too many or too few, or a number that is none
    if table.num_rows != _num_controls(text, separator):
        return None  # there are blank lines, or control characters that end no line
    columns: list[Coded | Floats] = []
    for name, is_number in zip(names, numeric, strict=True):
        column = table.column(name).chunk(0)
        if is_number:
            columns.append(numbers(column))
        else:
            columns.append(Coded(column.dictionary.to_pylist(), numbers(column.indices)))
    return columns


def numbers(array: Any) -> NDArray[Any]:
    """The numbers or booleans (P,) of an array of pyarrow; what is null has any value.

    Its own `to_numpy` imports pandas, which takes longer than reading most lists.
    """
    kind, where = str(array.type), slice(array.offset, array.offset + len(array))
    if kind == "null":
        return np.full(len(array), np.nan)
    if kind == "bool":
        return _bits(array.buffers()[1], where)
    dtype = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(kind, kind)
    return np.frombuffer(array.buffers()[1] or b"", dtype)[where]


def missing(array: Any) -> Bools:
    """Which elements (P,) of an array of pyarrow are null."""
    if not array.null_count:
        return np.zeros(len(array), dtype=np.bool_)
    if str(array.type) == "null":
        return np.ones(len(array), dtype=np.bool_)
    return ~_bits(array.buffers()[0], slice(array.offset, array.offset + len(array)))


def _bits(buffer: Any, where: slice) -> Bools:
    bits = np.frombuffer(buffer or b"", np.uint8)[: -(-where.stop // 8)]
    return np.unpackbits(bits, count=where.stop, bitorder="little")[where].view(np.bool_)


def odd(fields: Iterable[bytes], *, first: bool) -> bool:
    """Whether fields that `read` gave are empty, or, in the first column, begin a comment."""
    stripped = [field.strip() for field in fields]
    return b"" in stripped or (first and any(field[:1] == b"#" for field in stripped))


def _plain(block: bytes, longest: int) -> bytes | None:
    """The lines with plain ends, or None if they could be read in another way."""
    text = block.replace(b"\r\n", b"\n") if b"\r" in block else block
    if b"\r" in text or text.startswith(_BOM):
        return None  # pyarrow takes the one for the end of a line, the other for no part of a field
    # Where each of these windows holds the end of a line, no line is longer than two of them.
    window = longest // 2
    ends = (block.find(b"\n", start, start + window) for start in range(0, len(block), window))
    return text if min(ends) >= 0 else None


def _num_controls(text: bytes, separator: bytes | None) -> int:
    """How many control characters there are that are no separators."""
    characters = np.frombuffer(text, np.uint8)
    num_separators = np.count_nonzero(characters == ord("\t")) if separator == b"\t" else 0
    return int(np.count_nonzero(characters < 32) - num_separators)


def lines(
    enrol: tuple[Sequence[str], Ints],
    probe: tuple[Sequence[str], Ints],
    values: Floats | None,
    target: Bools | None,
    separator: str,
) -> Iterator[bytes]:
    r"""Yields the lines of a list as text in blocks, with each number as `repr` writes it.

    Args:
        enrol: The enrolment ids, and the number (P,) of that of each trial.
        probe: The same of the probes.
        values: (P,) scores, or None.
        target: (P,) labels, or None.
        separator: What stands between two fields.

    Yields:
        The bytes of the blocks. Ids of a block together may have up to 2 GB.

    Example:
        >>> blocks = lines((["a"], np.zeros(1, int)), (["b"], np.zeros(1, int)), None, None, " ")
        >>> b"".join(blocks)
        b'a b\n'
    """
    import pyarrow
    from pyarrow import compute

    # The last column ends the line.
    last = "\n" if target is None and values is None else ""
    sides = [
        (pyarrow.array(enrol[0], pyarrow.string()), enrol[1]),
        (pyarrow.array([name + last for name in probe[0]], pyarrow.string()), probe[1]),
    ]
    labels = pyarrow.array(["0\n", "1\n"])
    longest = max(len(name) for name in (*enrol[0], *probe[0]))
    rows = max(1, min(_ROWS, _BLOCK // (8 * longest + 64)))  # UTF-8 has up to 4 bytes a character
    for start in range(0, len(enrol[1]), rows):
        report("writing", start, len(enrol[1]))
        part = slice(start, start + rows)
        columns = [ids.take(pyarrow.array(numbers[part])) for ids, numbers in sides]
        if values is not None:
            columns.append(_texts(compute, values[part], "\n" if target is None else ""))
        if target is not None:
            columns.append(labels.take(pyarrow.array(target[part].view(np.uint8))))
        joined = compute.binary_join_element_wise(*columns, separator)
        ends = np.frombuffer(joined.buffers()[1], np.int32)[: len(joined) + 1]
        yield joined.buffers()[2].slice(0, int(ends[-1])).to_pybytes()


def _texts(compute: Any, values: Floats, end: str) -> Any:
    """The shortest texts (P,) that give back the same numbers, as `repr` writes them."""
    import pyarrow

    size = np.abs(values)
    alike = (size >= _DECIMALS[0]) & (size < _DECIMALS[1]) & (values != np.rint(values))
    texts = compute.cast(pyarrow.array(values), pyarrow.string())
    if not alike.all():
        others = pyarrow.array(list(map(repr, values[~alike].tolist())), pyarrow.string())
        texts = compute.replace_with_mask(texts, pyarrow.array(~alike), others)
    return compute.binary_join_element_wise(texts, end, "") if end else texts
