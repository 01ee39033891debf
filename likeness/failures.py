"""How a command ends when something goes wrong: one sentence on stderr and exit code 2, never a
traceback unless LIKENESS_TRACEBACK=1 asks for it. And how it warns: in one line.
"""

from __future__ import annotations

import ast
import dis
import os
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from typing import TextIO

from toolkit.printing import one_line, say, silence, warn

_PACKAGES = ("likeness", "eval", "toolkit", "modalities", "recipes", "examples")
_ROOT = Path(__file__).parents[1]
_OURS = tuple(os.path.join(os.path.realpath(_ROOT / name), "") for name in _PACKAGES)
_OF_OTHERS = tuple(
    {
        os.path.join(os.path.realpath(sysconfig.get_path(name)), "")
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)
_NAMES_FOR_PIP = {"cv2": "opencv-python-headless", "sklearn": "scikit-learn"}
_INSTALLED = ("site-packages", "dist-packages")
# The allocators of torch and ONNX Runtime raise RuntimeError with these words.
_NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc")
_WORKER = re.compile(
    r"Caught \w+ in .*Original Traceback \(most recent call "
    r"last\):\n(?P<frames>.*?)\n(?P<kind>[\w.]+): (?P<text>.*)",
    re.DOTALL,
)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+), in ', re.MULTILINE)
_CORRECT = (
    "correct that line, or what it is given; LIKENESS_TRACEBACK=1 before the command shows how it "
    "came there"
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
        with _plain_warnings():
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


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Within the block, a warning of Likeness or of the user's file is one line for the user; those
    of other packages are shown as Python shows them, with their place.
    """
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category is UserWarning and (_is_of_likeness(filename) or _is_users(filename)):
                warn(str(message))
            else:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def explain(error: BaseException) -> str:
    """One sentence on an exception.

    A text that Likeness wrote stands for itself. What went wrong in a file of the user is named
    with the file and the line. Any other exception is named with its kind, and with what it may
    mean: a damaged input or a defect of Likeness, or too little memory.
    """
    error = _inner(error)
    text = _text(error)
    # a DataLoader's worker hands on its traceback as the text
    if in_worker := _WORKER.search(text):
        return _explain_in_worker(in_worker["frames"], in_worker["kind"], in_worker["text"])
    if _is_ours(error):
        place = "" if error.__cause__ is None else place_of(error.__cause__)
        return one_line(text if not place or place in text else f"{text} ({place})")
    text = " ".join(text.split())
    if isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY):
        return f"there is not enough memory{f' ({text})' if text else ''}: {_LESS}"
    if place := place_of(error):
        return _in_file(place, error, text)
    if isinstance(error, ModuleNotFoundError) and error.name and not _is_found(error.name):
        module = error.name.partition(".")[0]
        package = _NAMES_FOR_PIP.get(module, module)
        return f"this needs {package}, which is not installed; run `pip install {package}`"
    if isinstance(error, IsADirectoryError) and error.filename:
        return f"{error.filename} is a folder; name a file"
    if isinstance(error, OSError | ImportError) and text:
        return text
    return _doubtful(type(error).__name__, text)


def _is_found(module: str) -> bool:
    """Whether the package that the module is of is installed."""
    try:
        return find_spec(module.partition(".")[0]) is not None
    except ValueError:  # a module that was put in place by hand
        return True


def explain_in_file(error: BaseException) -> str:
    """`explain`, with the file and the line of the user whatever was raised there, if there are.

    It is for files that hold nothing but statements of the user, of which one was refused.
    """
    sentence, place = explain(error), place_of(error)
    return sentence if place in sentence else f"{place}: {sentence}"


def place_of(error: BaseException) -> str:
    """Where in the user's own files an exception came from: "own.py, line 12", or "".

    It is the innermost line that is neither of Likeness, nor of an installed package, nor of
    Python. Of exceptions that caused each other, the first one counts.
    """
    if error.__cause__ is not None and (place := place_of(error.__cause__)):
        return place
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        return _place(error.filename, error.lineno or 1)
    lines = [(frame.f_code.co_filename, number) for frame, number in walk_tb(error.__traceback__)]
    return next((_place(*line) for line in reversed(lines) if _is_users(line[0])), "")


def _in_file(place: str, error: BaseException, text: str) -> str:
    """The sentence on an exception that came from a line of the user."""
    if isinstance(error, SyntaxError):
        text = error.msg
    innermost = list(walk_tb(error.__traceback__))[-1:]
    by_user = any(_is_users(frame.f_code.co_filename) for frame, _ in innermost)
    if text and by_user and _is_raised(error):  # a sentence that the user wrote
        return f"{place}: {text}"
    if isinstance(error, ModuleNotFoundError) and text:
        return f"{place}: {text}; install it, or put its folder on PYTHONPATH"
    kind = type(error).__name__
    what = text if isinstance(error, OSError | ImportError) and text else _kind_and(kind, text)
    return f"{place}: {what}; {_CORRECT}"


def _explain_in_worker(frames: str, kind: str, text: str) -> str:
    """The sentence on an exception whose traceback came from a reading process as a text."""
    text = " ".join(text.split())
    if kind == "KeyError":  # whose text is the key as Python would write it
        with suppress(ValueError, SyntaxError):
            text = str(ast.literal_eval(text))
    lines = [(match["file"], int(match["line"])) for match in _FRAME.finditer(frames)]
    raised = frames.splitlines()[-1].strip().startswith("raise ")
    place = next((_place(*line) for line in reversed(lines) if _is_users(line[0])), "")
    if raised and lines and _is_of_likeness(lines[-1][0]):
        return text
    if not place:
        return _doubtful(kind, text)
    if raised and text and _is_users(lines[-1][0]):
        return f"{place}: {text}"
    return f"{place}: {_kind_and(kind, text)}; {_CORRECT}"


def _kind_and(kind: str, text: str) -> str:
    return f"{kind}{f': {text}' if text else ''}"


def _doubtful(kind: str, text: str) -> str:
    return f"{_kind_and(kind, text)}; {_DOUBT}"


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
    """Whether a `raise` statement of Likeness or of one of its recipes made it: then its text is a
    sentence that was written for the user.

    `values[name]` and `int(text)` raise KeyError and ValueError in our files too, but not by a
    `raise`, and their texts say nothing to the user.
    """
    innermost = list(walk_tb(error.__traceback__))[-1:]
    ours = any(_is_of_likeness(frame.f_code.co_filename) for frame, _ in innermost)
    return ours and not isinstance(error, AssertionError) and _is_raised(error)


def _is_raised(error: BaseException) -> bool:
    """Whether a `raise` statement made an exception, in whatever file."""
    place = error.__traceback__
    if place is None:
        return False
    while place.tb_next is not None:
        place = place.tb_next
    code = place.tb_frame.f_code.co_code
    return 0 <= place.tb_lasti < len(code) and code[place.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def _is_of_likeness(file: str) -> bool:
    return os.path.realpath(file).startswith(_OURS)


def _is_users(file: str) -> bool:
    """Whether a file of Python is the user's own."""
    if file.startswith("<") or any(f"{os.sep}{name}{os.sep}" in file for name in _INSTALLED):
        return False
    return not os.path.realpath(file).startswith((*_OURS, *_OF_OTHERS))


def _place(file: str, line: int) -> str:
    """A line of a file, as a person would name it who is in the working directory."""
    path = os.path.abspath(file)
    with suppress(OSError):  # the working directory may be gone
        path = path.removeprefix(os.path.join(os.getcwd(), ""))
    return f"{path}, line {line}"


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
