"""Where the 8-bit array in a pickle lies, and the plain values beside it, without unpickling:
nothing is imported, called or built but lists and dictionaries.

For the archives that the field distributes as pickles (CIFAR). pickletools.genops names the
instructions; those that such a file needs are followed with numpy's two constructors as mere names,
and any other instruction or name is refused. An array is not copied: its place in the file is what
is wanted.
"""

from __future__ import annotations

import pickletools
from typing import Any, NamedTuple, cast

# instruction -> bytes in front of its text
_TEXTS = {
    "BINSTRING": 5,
        "SHORT_BINSTRING": 2,
            "BINBYTES": 5,
                "SHORT_BINBYTES": 2,
                    "BINBYTES8": 9, "BINUNICODE": 5, "SHORT_BINUNICODE": 2, "BINUNICODE8": 9,
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
_ARRAY, _DTYPE = (
    ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"),
    ("numpy dtype",),
)
_NAMES = (*_ARRAY, *_DTYPE, "numpy ndarray")


class Array(NamedTuple):
    """Bytes of an 8-bit array in its file: element (i, j) of shape (rows, columns) is byte start +
    i * columns + j, or start + j * rows + i if by_columns.
    """

    start: int
    rows: int
    columns: int
    by_columns: bool


class _Text(NamedTuple):
    start: int
    length: int


class _Name(NamedTuple):
    name: str


class _Made:
    """What a call would have made: the callee's name, its arguments and the state set later."""

    def __init__(self, name: str, arguments: tuple[Any, ...]):
        self.name, self.arguments = name, arguments
        self.state: Any = None


_MARK = object()


def load(source: bytes, name: str) -> dict[str, Any]:
    """The dictionary in a pickle: text keys to Array, lists of int, lists of str, int or str.

    ValueError, in the name of `name`, for anything else.
    """
    try:
        found = _run(source, name)
    except ValueError as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name}: damaged or cut short ({error}); fetch it again") from error
    except (
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        StopIteration,
        RecursionError,
        MemoryError,
    ) as error:
        raise ValueError(
            f"{name}: damaged, its instructions do not fit together ({type(error).__name__}); "
            "fetch it again"
        ) from error
    if not isinstance(found, dict):
        raise ValueError(
            f"{name}: holds a {type(found).__name__}; a dictionary with the images is needed"
        )
    texts: dict[_Text, str] = {}  # one string for each, however often the file refers to it
    return {
        str(_plain(key, source, name, texts)): _plain(value, source, name, texts)
        for key, value in found.items()
    }


def _run(source: bytes, name: str) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def marked() -> list[Any]:
        place = len(stack) - 1 - next(i for i, one in enumerate(reversed(stack)) if one is _MARK)
        taken = stack[place + 1 :]
        del stack[place:]
        return taken

    for instruction, stated, position in pickletools.genops(source):
        kind, argument = instruction.name, cast(Any, stated)
        if kind in _TEXTS:
            assert position is not None
            held = (
                argument.encode("utf-8", "surrogatepass")
                if kind.endswith(("UNICODE", "UNICODE8"))
                else argument
            )
            stack.append(_Text(position + _TEXTS[kind], len(held)))
        elif kind in _NUMBERS:
            stack.append(argument)
        elif kind in _CONSTANTS:
            stack.append(_CONSTANTS[kind])
        elif kind in ("PROTO", "FRAME"):
            pass
        elif kind == "MARK":
            stack.append(_MARK)
        elif kind in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[kind]())
        elif kind in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(kind[-1])
            stack[-size:] = [tuple(stack[-size:])]
        elif kind in ("TUPLE", "LIST"):
            taken = marked()
            stack.append(tuple(taken) if kind == "TUPLE" else taken)
        elif kind in ("APPEND", "APPENDS"):
            taken = marked() if kind == "APPENDS" else [stack.pop()]
            stack[-1].extend(taken)
        elif kind in ("SETITEM", "SETITEMS"):
            taken = marked() if kind == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if not all(
                isinstance(one, _Text | int) for one in taken[::2]
            ):  # tuples in tuples take for ever to hash
                raise ValueError("a dictionary's key is neither text nor number")
            stack[-1].update(zip(taken[::2], taken[1::2], strict=True))
        elif kind in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if kind == "MEMOIZE" else argument] = stack[-1]
        elif kind in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif kind in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(
                _Name(
                    _allowed(
                        argument
                        if kind == "GLOBAL"
                        else f"{_text(stack.pop(-2), source)} {_text(stack.pop(), source)}",
                        name,
                    )
                )
            )
        elif kind == "REDUCE":
            arguments, callee = stack.pop(), stack.pop()
            stack.append(_Made(callee.name, arguments))
        elif kind == "BUILD":
            state = stack.pop()
            stack[-1].state = state
        elif kind == "STOP":
            return stack.pop()
        else:
            raise ValueError(
                f"{name}: its pickle has the instruction {kind}, which no file of the data set "
                "needs; it was not run: fetch the file from its source"
            )
    raise ValueError("no end")


def _allowed(wanted: str, name: str) -> str:
    if wanted not in _NAMES:
        raise ValueError(
            f"{name}: its pickle names {wanted[:80]!r}, which no file of the data set needs; "
            "nothing was run: fetch the file from its source"
        )
    return wanted


def _text(value: _Text, source: bytes) -> str:
    return source[value.start : value.start + value.length].decode("latin-1")


def _plain(value: Any, source: bytes, name: str, texts: dict[_Text, str]) -> Any:
    """Values of a dictionary as the caller gets them."""
    if isinstance(value, _Text):
        return texts[value] if value in texts else texts.setdefault(value, _text(value, source))
    if isinstance(value, list) and all(isinstance(one, _Text | int) for one in value):
        return [_plain(one, source, name, texts) for one in value]
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, _Made):
        raise ValueError(
            f"{name}: holds a {type(value).__name__.lstrip('_')} of other things than texts and "
            "numbers; fetch the file again"
        )
    try:
        _, (rows, columns), kind, by_columns, held = value.state
        fits = (
            value.name in _ARRAY
            and kind.name in _DTYPE
            and _text(kind.arguments[0], source) in ("u1", "|u1")
        )
        fits = (
            fits
            and type(rows) is int
            and type(columns) is int
            and 0 < rows <= held.length
            and 0 < columns <= held.length
        )
        fits = fits and rows * columns == held.length
    except (ValueError, TypeError, AttributeError, LookupError):
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: its array is no whole two-dimensional one of 8-bit numbers; fetch the file "
            "again"
        )
    return Array(held.start, rows, columns, bool(by_columns))
