"""How a command ends when something goes wrong.

What is wrong for the user is one sentence on stderr and exit code 2. Anything else is a defect, of
Likeness or of a file of the user, and shows its traceback.
"""

import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from likeness.eval.errors import LikenessError, Unreachable, install_line, shorten
from likeness.toolkit import signals
from likeness.toolkit.console import one_line, say, silence, warn

_NUM_NAMED = 20  # warnings of one reason that are shown, as of bad items
_EXTRAS = {  # of packages that not every installation has
    **dict.fromkeys(("torch", "torchaudio", "speechbrain", "insightface"), "train"),
    **dict.fromkeys(("albumentations", "onnxscript", "yaml"), "train"),
    **dict.fromkeys(("fastapi", "starlette", "granian"), "serve"),
    **dict.fromkeys(("transformers", "peft", "huggingface_hub"), "hub"),
    **dict.fromkeys(("tensorboard", "wandb"), "log"),
    "cv2": "face",
    "requests": "prepare",
    "faiss": "faiss",
    "psycopg": "postgres",
    "optuna": "tune",
    "kaldiio": "kaldi",
    "av": "m4a",
    "fsspec": "s3",
}
_PACKAGES = {  # A small image has only some of what every installation brings.
    **{name: name for name in ("scipy", "onnx", "onnxruntime", "jinja2", "markupsafe", "bokeh")},
    "sklearn": "scikit-learn",
}

_LONGEST = 1_000  # characters of a message


@contextmanager
def one_sentence(program: str, *, for_good: bool = False) -> Iterator[None]:
    """What is wrong for the user inside ends the process with exit code 2 and one sentence on
    stderr, and a signal that ends it (likeness.toolkit.signals) with 130. LIKENESS_TRACEBACK=1
    prints the traceback as well.

    Args:
        program: What the sentence begins with.
        for_good: The process ends after the block, in any case.
    """
    with signals.ended_by_signals(for_good=for_good):
        try:
            with _sentences(program):
                yield
        except SystemExit as ended:
            is_stopped = for_good and ended.code == signals.STOPPED
            if ended.code and (signals.is_one_of_several() or is_stopped):
                signals.leave(ended.code)
            raise
        except BaseException as defect:
            if for_good and signals.is_one_of_several():
                sys.excepthook(type(defect), defect, defect.__traceback__)
                signals.leave(1)
            raise


@contextmanager
def _sentences(program: str) -> Iterator[None]:
    """Say what is wrong for the user inside, and exit."""
    try:
        with _plain_warnings():
            yield
    except KeyboardInterrupt as stopped:
        say(f"{program}: stopped by {str(stopped) or 'Ctrl-C'}", error=True)
        sys.exit(signals.STOPPED)
    except signals.Interrupted as stopped:
        say(str(stopped), error=True)
        sys.exit(signals.STOPPED)
    except (LikenessError, Unreachable, OSError, MemoryError, ModuleNotFoundError) as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone(error.filename):
            sys.exit(0)
        if not (sentence := explain(error)):
            raise
        if os.environ.get("LIKENESS_TRACEBACK"):
            say("".join(traceback.format_exception(error)), error=True)
        say(one_line(f"{program}: {shorten(sentence, _LONGEST)}"), error=True)
        sys.exit(2)


def explain(error: BaseException) -> str:
    """The sentence on an exception that is not a defect; "" for a package that is none of ours."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError):
        package = str(error.name).partition(".")[0]
        if package in _EXTRAS:
            return f"this needs {package}; run `{install_line(_EXTRAS[package])}`"
        if package in _PACKAGES:
            return f"this needs {package}; run `pip install {_PACKAGES[package]}`"
        return ""
    if isinstance(error, MemoryError):
        return f"there is not enough memory{f' ({text})' if text else ''}: take fewer items at once"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # A reading process of torch hands on its traceback as a text, which ends in the sentence.
    kind = f"{type(error).__module__}.{type(error).__qualname__}: "
    return text.rpartition(kind)[2].strip() if "Original Traceback" in text else text


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Within the block, a UserWarning is one line for the user; the same sentence comes once.

    What is said of many items names the first of them, and the others are counted.
    """
    with warnings.catch_warnings():
        shown, printed, alike = warnings.showwarning, set[str](), Counter[str]()

        def show(message: Warning | str, category: type[Warning], *where: Any, **to: Any) -> None:
            if category is UserWarning and (text := str(message)) not in printed:
                printed.add(text)
                # What is said of an item names it first.
                reason = text.partition(": ")[2] or text
                alike[reason] += 1
                if alike[reason] <= _NUM_NAMED:
                    warn(text)
            elif category is not UserWarning:
                shown(message, category, *where, **to)

        warnings.showwarning = show
        try:
            yield
        finally:
            for reason, num in alike.items():
                if num > _NUM_NAMED:
                    warn(f"{num - _NUM_NAMED:,} more: {reason}")


def _reader_is_gone(path: str | None) -> bool:
    """Whether the broken pipe is our own output, by that path or not; it is then silenced."""
    gone = path is not None and os.path.samestat(os.stat(path), os.fstat(1))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)
            gone = True
    return gone
