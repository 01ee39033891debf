"""Counts the functions that a value passes through, from the call of a user to its use.

    python benchmarks/ways.py

Measures: of five values, how many functions of Likeness receive it, and in how many files they
    stand; from the command, and from the public function that the command calls. A function
    receives a value if one of its arguments is the value, or holds it in a tuple, a list, a
    dictionary, a dataclass or a partial, at any depth; the object of a method is an argument. A
    path is its text or its Path, and it ends where it becomes a cell of `Items`. A number is an
    equal float, or its text. A batch is a Draw, an Item, a View, a Batch, or an array or a tensor
    of floats, within the first step of a training. Functions without a name of their own, such as
    comprehensions, belong to the function that they stand in.
Limit: the wanted numbers of the map of the code.
Needs: `pip install -e '.[train]'`.
Takes: a minute.
Gives: a table with the wanted numbers; --functions lists the functions as well.
"""

import dataclasses
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from performance import parser_of, row, table

import likeness

ROOT = Path(likeness.__file__).resolve().parents[1]
PRODUCT = ("eval", "toolkit", "modalities", "likeness", "recipes")
FAR, RATE = 0.123, 0.0123  # numbers that nothing else has
WANTED = {
    "a wav path of `verify`": (12, 6),
    "a trial list of `score`": (12, 5),
    "`--far` of `evaluate`": (15, 6),
    "a batch to its loss": (25, 12),
    "an override of `train`": (25, 12),
}
FEW = ("schedule.steps=2", "schedule.warmup_steps=0", "schedule.eval_every=0")
FEW += ("sampling.batch_size=4", "compute.threads=1")

Is = Callable[[Any], bool]


class Function(NamedTuple):
    """A function of ours: its file below the checkout, and its name there."""

    file: str
    name: str


Way = set[Function]
_LOOP = "toolkit/training/train.py"
_STEP = Function(_LOOP, "train"), Function(_LOOP, "step")  # they begin and end the way of a batch


def holds(value: Any, is_value: Is) -> bool:
    """Return whether an argument is the value, or holds it."""
    if is_value(value):
        return True
    parts: Any = value if isinstance(value, tuple | list) else ()
    if isinstance(value, partial):
        parts = (*value.args, *value.keywords.values())
    elif isinstance(value, Mapping):
        parts = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return any(holds(part, is_value) for part in parts)


@contextmanager
def recorded(
    is_value: Is, start: Function | None = None, stop: Function | None = None
) -> Iterator[Way]:
    """Yield the functions that receive a value within the block, which fill up as they are called.

    Args:
        is_value: Whether an argument is the value.
        start: The function that is called before the value is there; None for the first of all.
        stop: The function whose return ends the way; None for the last of all.
    """
    way: Way = set()
    is_on = start is None

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal is_on
        code = frame.f_code
        if event not in ("call", "return") or code.co_name.startswith("<"):
            return
        file = _below_root(code.co_filename)
        if file is None:
            return
        function = Function(file, code.co_qualname)
        if event == "return":
            is_on = is_on and function != stop
            return
        is_on = is_on or function == start
        if not is_on or function in way:
            return
        has_stars = bool(code.co_flags & 4) + bool(code.co_flags & 8)  # *args and **options
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_stars]
        if any(holds(frame.f_locals.get(name), is_value) for name in names):
            way.add(function)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _below_root(file: str, known: dict[str, str | None] = {}) -> str | None:  # noqa: B006
    """The path of a file of the product below the checkout; None for any other file."""
    if file not in known:
        path = Path(file).resolve()
        is_ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PRODUCT
        known[file] = path.relative_to(ROOT).as_posix() if is_ours else None
    return known[file]


def text_is(text: str) -> Is:
    """A path or a text that is equal to the text."""
    return lambda value: isinstance(value, str | Path) and str(value) == text


def number_is(number: float, *texts: str) -> Is:
    """A float that is equal to the number, or a text of it."""
    known = (number, str(number), *texts)
    return lambda value: isinstance(value, float | str) and value in known


def is_of_batch(value: Any) -> bool:
    """Whether a value is a part of a batch, in any of the forms that it takes."""
    import torch

    from likeness.toolkit.data.batch import Batch, Draw, View

    if isinstance(value, Batch | Draw | View | likeness.Item):
        return True
    if isinstance(value, np.ndarray):
        return bool(value.ndim) and value.dtype.kind == "f"
    return isinstance(value, torch.Tensor) and bool(value.ndim) and value.is_floating_point()


def measure(folder: Path) -> dict[str, tuple[Way, Way]]:
    """Follow the five values.

    Args:
        folder: An empty folder, which gets recordings, runs and scores.

    Returns:
        value -> its way from the command, and its way from the public function.
    """
    with chdir(folder):
        return dict(zip(WANTED, _ways(), strict=True))


def _ways() -> Iterator[tuple[Way, Way]]:
    import soundfile

    from likeness.modalities.synthetic import write_voices

    write_voices(Path("voices"), num_speakers=6, num_utterances=3, seed=0)
    files = sorted(Path("voices").rglob("*.flac"))
    for name, file in zip(("a.wav", "b.wav"), files, strict=False):
        soundfile.write(name, *soundfile.read(file))
    ids = [file.relative_to("voices").as_posix() for file in files]
    pairs = itertools.combinations(ids, 2)
    lines = [f"{int(a.split('/')[0] == b.split('/')[0])} {a} {b}\n" for a, b in pairs]
    Path("trials.txt").write_text("".join(lines))

    of_rate = number_is(RATE, f"optim.lr={RATE}")
    training = ("train", "speaker/folders", *FEW, f"optim.lr={RATE}", "--data", "voices")
    with recorded(of_rate) as rate_typed:
        _command(*training, "--out", "runs/typed")
    with recorded(of_rate) as rate_called:
        settings = [*FEW, f"optim.lr={RATE}"]
        model = likeness.train("speaker/folders", "voices", "runs/called", settings=settings)
    with recorded(is_of_batch, *_STEP) as batch:
        likeness.train("speaker/folders", "voices", "runs/batch", settings=FEW)

    with recorded(text_is("a.wav")) as path_typed:
        _command("verify", "a.wav", "b.wav", "--model", "runs/called")
    with recorded(text_is("a.wav")) as path_called:
        model.verify("a.wav", "b.wav")
    yield path_typed, path_called

    model.embed("voices").save("embeddings.npz")
    scoring = ("--trials", "trials.txt", "--embeddings", "embeddings.npz")
    with recorded(text_is("trials.txt")) as list_typed:
        _command("score", *scoring, "--out", "typed.txt")
    with recorded(text_is("trials.txt")) as list_called:
        likeness.score("trials.txt", "embeddings.npz").save("scores.txt")
    yield list_typed, list_called

    with recorded(number_is(FAR)) as far_typed:
        _command("evaluate", "scores.txt", "--far", str(FAR), "--resamples", "50")
    with recorded(number_is(FAR)) as far_called:
        of_far = likeness.VerificationSettings(fars=[FAR], num_resamples=50)
        likeness.evaluate("scores.txt", of_far)
    yield far_typed, far_called
    yield batch, batch
    yield rate_typed, rate_called


def _command(*words: str) -> None:
    """Run a command in this process."""
    from likeness.cli import main

    with suppress(SystemExit):
        main(list(words))


def size_of(way: Way) -> tuple[int, int]:
    """Return how many functions a way has, and in how many files they stand."""
    return len(way), len({function.file for function in way})


def main() -> None:
    """Print the table."""
    asked = parser_of(__doc__, ("functions", False, "list the functions")).parse_args()
    os.environ.setdefault("LIKENESS_PROGRESS", "0")
    with TemporaryDirectory() as name:
        ways = measure(Path(name))
    print()
    table("value", "from the command", "from Python", "wanted")
    for value, both in ways.items():
        row(value, *("{} in {}".format(*size) for size in (*map(size_of, both), WANTED[value])))
    if asked.functions:
        for value, (typed, called) in ways.items():
            print(f"\n{value} (* not from Python)")
            for function in sorted(typed | called):
                print(f"    {function.file} {function.name}{'' if function in called else ' *'}")


if __name__ == "__main__":
    main()
