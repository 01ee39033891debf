"""Omniglot: 1,623 handwritten characters of 50 alphabets, each by 20 people, 105 x 105 (Lake et
al., Science 2015). Ink is 255 here, paper 0.

Layouts: DATA/omniglot/images_background/ALPHABET/characterNN/*.png (and images_evaluation), or the
background set packed into DATA/omniglot/ images_background.npz: `ink_packed` (N, 1379) uint8, 105 x
105 bits a row; `label` (N,), `class_name` (964,) "ALPHABET/characterNN", `name` (N,).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eval.formats import npz
from eval.types import name_first
from modalities.image import images, packed
from modalities.image.splits import Split, check_split
from toolkit.data.batch import Floats, Item
from toolkit.data.images import BadImage, to_floats
from toolkit.data.source import Count

FETCH = (
    "fetch images_background.zip and images_evaluation.zip (MIT) from "
    "https://github.com/brendenlake/omniglot (python) and unpack them in DATA/omniglot"
)
EDGE, NUM_TRAIN_ALPHABETS = 105, 20
TURNS = (90, 180, 270)
_ENDING, _ROW_BYTES, _MARK = ".bits_105x105" + packed.COMPRESSED, 1379, "#turn="
_MAX_BYTES = 2**28  # of the .npz; the true one has 27 MB
_COUNTS: tuple[tuple[Split, int], ...] = (
    ("train", 964 * 20),
    ("test", 659 * 20),
)  # background and evaluation


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Literal["background", "official"] = "background",
    validation_alphabets: int = 0,
    turns: tuple[int, ...] = (),
) -> list[Item]:
    """Items "ALPHABET/characterNN/0709_01" with the character as label, sorted; alphabets are
    divided, never one alphabet's characters.

    protocol "background": of the 30 background alphabets the first 20 in alphabetical order train
    and the last 10 test. "official": background trains, the 20 evaluation alphabets test (Lake et
    al. 2015; needs images_evaluation). validation_alphabets: the last so many of the training ones
    are "validation".
    turns: characters turned by these multiples of 90 degrees as new training classes (Santoro et
    al., ICML 2016, Sec. 4.1), "#turn=90" on id and label; read them with omniglot.read.
    FileNotFoundError says what to fetch; ValueError for another layout, too few alphabets, and
    other turns.
    """
    check_split(split)
    if (
        protocol not in ("background", "official")
        or not set(turns) <= set(TURNS)
        or len(set(turns)) < len(turns)
    ):
        raise ValueError(
            f"omniglot: protocol {protocol!r} with turns {turns}; 'background' or 'official' and "
            f"turns of {TURNS}, each once, are allowed"
        )
    root = next(
        (one for one in (Path(data) / "omniglot", Path(data) / "omniglot-py") if one.is_dir()),
        Path(data),
    )
    found = _background(root)
    alphabets = sorted({_alphabet(one) for one in found})
    later = _scan(root / "images_evaluation") if protocol == "official" else []
    train = alphabets if protocol == "official" else alphabets[:NUM_TRAIN_ALPHABETS]
    test = (
        sorted({_alphabet(one) for one in later})
        if protocol == "official"
        else alphabets[NUM_TRAIN_ALPHABETS:]
    )
    if not test:
        raise ValueError(
            f"{root}: {len(alphabets)} background alphabets; more than {NUM_TRAIN_ALPHABETS} are "
            f"needed; {FETCH}"
        )
    if not 0 <= validation_alphabets < len(train) or (
        split == "validation" and not validation_alphabets
    ):
        raise ValueError(
            f"omniglot: validation_alphabets is {validation_alphabets} with split {split!r}; 1 to "
            f"{len(train) - 1} are allowed there, 0 elsewhere"
        )
    cut = len(train) - validation_alphabets
    wanted = {
        "train": set(train[:cut]),
        "validation": set(train[cut:]),
        "test": set(test),
        "all": {*train, *test},
    }[split]
    chosen = [one for one in found + later if _alphabet(one) in wanted]
    return turned(chosen, turns) if split == "train" else chosen


def check(data: Path) -> list[Count]:
    """What `likeness prepare omniglot` counts. Raises as items()."""
    return [
        Count(
            f"Omniglot: {split} images", len(items(data, split=split, protocol="official")), number
        )
        for split, number in _COUNTS
    ]


def turned(items: Iterable[Item], turns: Iterable[int] = TURNS) -> list[Item]:
    """The items, then one copy of all for each turn, "#turn=90" appended to id and label.

    >>> [(one.id, one.label) for one in turned([Item("a/1", Path("a/1.png"), "a")], turns=(90,))]
    [('a/1', 'a'), ('a/1#turn=90', 'a#turn=90')]
    """
    originals = list(items)
    copies = list(originals)
    for turn in turns:
        copies += [
            one._replace(
                id=f"{one.id}{_MARK}{turn}",
                label=None if one.label is None else f"{one.label}{_MARK}{turn}",
            )
            for one in originals
        ]
    return copies


def read(item: Item, *, edge: int = EDGE) -> Floats:
    """item -> (1, edge, edge) float32, ink 255 on 0, antialiased where edge is not 105, turned to
    the left as an id's ending "#turn=90" says.

    Raises BadImage as images.read does, for rows outside the packed file, and for a turn that is no
    multiple of 90 within 90 to 270.
    """
    _, mark, turn = item.id.rpartition(_MARK)
    if mark and turn not in map(str, TURNS):
        raise BadImage(
            f"item {item.id!r}: the turn {turn!r} is none of {', '.join(map(str, TURNS))}; write "
            f"e.g. '{_MARK}90'"
        )
    if item.suffix == _ENDING:
        ink = np.unpackbits(_row(item))[: EDGE * EDGE].reshape(EDGE, EDGE) * np.uint8(255)
    else:
        ink = (255 - images.read(item, grey=True)[0]).astype(np.uint8)
    if ink.shape != (edge, edge):
        ink = np.asarray(Image.fromarray(ink).resize((edge, edge), Image.Resampling.BILINEAR))
    return to_floats(np.rot90(ink, int(turn) // 90) if mark else ink)


def _alphabet(item: Item) -> str:
    return item.id.partition("/")[0]


def _background(root: Path) -> list[Item]:
    where = packed.locate(root, ("images_background.npz", "images_background"), FETCH)
    if where.is_dir():
        return _scan(where)
    try:
        label, classes, name = (_array(where, one) for one in ("label", "class_name", "name"))
        rows = _ink(where, where.stat().st_mtime_ns)
        if not (
            label.ndim == 1
            and len(label) == len(name) == len(rows)
            and len(label)
            and 0 <= label.min() <= label.max() < len(classes)
        ):
            raise ValueError(
                f"{len(label)} labels and {len(name)} names for {len(rows)} images of "
                f"{len(classes)} classes"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not the packed background set ({error}); {FETCH}") from error
    texts = [str(one) for one in classes]
    labelled = [
        (texts[number], str(drawn))
        for number, drawn in zip(label.tolist(), name.tolist(), strict=True)
    ]
    return [
        Item(f"{text}/{drawn}", where, text, (i * _ROW_BYTES, _ROW_BYTES), _ENDING)
        for i, (text, drawn) in enumerate(labelled)
    ]


def _scan(folder: Path) -> list[Item]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; {FETCH}")
    files = sorted(folder.glob("*/*/*.png"))
    if not files:
        loose = name_first(sorted(one.name for one in folder.iterdir()))
        raise ValueError(
            f"{folder}: no ALPHABET/characterNN/*.png, but {loose or 'nothing'}; {FETCH}"
        )
    return [
        Item(
            one.relative_to(folder).with_suffix("").as_posix(),
            one,
            one.relative_to(folder).parent.as_posix(),
        )
        for one in files
    ]


def _array(path: Path, member: str) -> NDArray[Any]:
    """One array of an .npz of a sensible size; nothing pickled is read.

    KeyError where there is none of this name.
    """
    with npz.opened(path, _MAX_BYTES, FETCH) as held:
        return held.read(member)


@lru_cache(maxsize=1)
def _ink(path: Path, mtime_ns: int) -> NDArray[np.uint8]:
    """(N, 1379) packed rows, decompressed once in each process: 27 MB."""
    rows = _array(path, "ink_packed")
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != _ROW_BYTES:
        raise ValueError(
            f"ink_packed is {rows.dtype} {rows.shape}, (N, {_ROW_BYTES}) uint8 is needed"
        )
    return rows


def _row(item: Item) -> NDArray[np.uint8]:
    """(1379,) packed bits of one item of the .npz."""
    try:
        offset, size = item.span or (0, 0)
        held = _ink(item.path, item.path.stat().st_mtime_ns).reshape(-1)[
            max(0, offset) : max(0, offset + size)
        ]
    except (OSError, ValueError, KeyError) as error:
        raise BadImage(f"{item.name}: {error}; {FETCH}") from error
    if len(held) != _ROW_BYTES:
        raise BadImage(
            f"{item.name}: {len(held)} bytes of packed bits; {_ROW_BYTES} are needed; list the "
            "data anew"
        )
    return held
