"""How a command ends when something goes wrong: one sentence on stderr and exit code 2, never a
traceback unless LIKENESS_TRACEBACK=1 asks for it.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from toolkit.printing import one_line, say, silence

_PACKAGES = ("likeness", "eval", "toolkit", "modalities", "recipes")
_OF_OTHERS = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
# The allocators of torch and ONNX Runtime raise RuntimeError with these words.
_NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc")
_WORKER = re.compile(
    r"Caught \w+ in .*Original Traceback \(most recent call "
    r"last\):\n(?P<frames>.*?)\n(?P<kind>[\w.]+): (?P<text>.*)",
    re.DOTALL,
)
_DOUBT = (
    "an input may be damaged, or this is a defect of Likeness; LIKENESS_TRACEBACK=1 before the "
    "command shows where it happened"
)
_LESS = (
    "take smaller batches or fewer items at once, or a machine with more; a damaged file may also "
    "claim a size that it does not have"
)


@contextmanager
def one_sentence(program: str) -> Iterator[None]:
    """Whatever goes wrong inside ends the process: wrong input with exit code 2 and one sentence on
    stderr, Ctrl-C with 130.

    LIKENESS_TRACEBACK=1 prints the traceback as well. SystemExit passes.
    """
    try:
        yield
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # torch's CheckpointException and the panics of Rust libraries are no Exception
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            sys.exit(0)
        if os.environ.get("LIKENESS_TRACEBACK"):
            say("".join(traceback.format_exception(error)), error=True)
        if isinstance(error, KeyboardInterrupt):
            say(f"{program}: stopped by Ctrl-C", error=True)
            sys.exit(130)
        say(f"{program}: {explain(error)}", error=True)
        sys.exit(2)


def explain(error: BaseException) -> str:
    """One sentence on an exception.

    A text that Likeness or a recipe wrote, or the operating system or an import, stands for itself.
    Any other is named with its kind, and with what
    it may mean: a damaged input or a defect of Likeness, or too little memory.
    """
    error = _inner(error)
    text = _text(error)
    # a DataLoader's worker hands on its traceback as the text
    if in_worker := _WORKER.search(text):
        last = in_worker["frames"].splitlines()[-1]
        text = " ".join(in_worker["text"].split())
        return text if last.strip().startswith("raise ") else _doubtful(in_worker["kind"], text)
    if _is_ours(error):
        return one_line(text)
    text = " ".join(text.split())
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return f"there is not enough memory{f' ({text})' if text else ''}: {_LESS}"
    if isinstance(error, OSError | ImportError) and text:
        return text
    return _doubtful(type(error).__name__, text)


def _doubtful(kind: str, text: str) -> str:
    return f"{kind}{f': {text}' if text else ''}; {_DOUBT}"


def _inner(error: BaseException) -> BaseException:
    """The exception of the process that failed, in place of torch's CheckpointException, which
    holds those of all processes.
    """
    failures = getattr(error, "failures", None)
    if type(error).__name__ == "CheckpointException" and isinstance(failures, dict) and failures:
        first = next(iter(failures.values()))
        inner = first[0] if isinstance(first, tuple) else first
        return inner if isinstance(inner, BaseException) else error
    return error


def _text(error: BaseException) -> str:
    try:
        return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    except Exception:  # the text of a foreign exception is foreign code
        return ""


def _is_ours(error: BaseException) -> bool:
    """Whether a `raise` statement of Likeness or of the user's recipe made it: then its text is a
    sentence that was written for the user.

    `values[name]` and `int(text)` raise KeyError and ValueError in our files too, but not by a
    `raise`, and their texts say nothing to the user.
    """
    place = error.__traceback__
    if place is None or isinstance(error, AssertionError):
        return False
    while place.tb_next is not None:
        place = place.tb_next
    return _raises(place) and _is_our_file(place)


def _raises(place: TracebackType) -> bool:
    code = place.tb_frame.f_code.co_code
    return 0 <= place.tb_lasti < len(code) and code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_our_file(place: TracebackType) -> bool:
    name = str(place.tb_frame.f_globals.get("__name__", ""))
    return name.split(".")[0] in _PACKAGES or not place.tb_frame.f_code.co_filename.startswith(
        (*_OF_OTHERS, "<")
    )


def _reader_is_gone() -> bool:
    """Whether the broken pipe is our own output; its streams are then silenced."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)
            gone = True
    return gone
