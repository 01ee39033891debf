"""Omniglot: 1,623 handwritten characters of 50 alphabets, each drawn by 20 people, 105 x 105.

Source: Lake et al., Science 2015. Ink is 255 here and paper 0.

Layouts: DATA/omniglot/images_background/ALPHABET/characterNN/*.png (and images_evaluation); or the
background set packed into DATA/omniglot/images_background.npz, which has `ink_packed` (N, 1379)
uint8, each row 105 x 105 bits; `label` (N,); `class_name` (964,), "ALPHABET/characterNN"; and
`name` (N,).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from eval.errors import LikenessError
from eval.formats import npz
from eval.types import name_first
from modalities.image import images, packed
from modalities.image.splits import Split, check_split
from toolkit.data.images import BadImage, to_floats
from toolkit.data.items import Item
from toolkit.data.reading import Floats

FETCH = (
    "fetch images_background.zip and images_evaluation.zip (MIT) from "
    "https://github.com/brendenlake/omniglot (python) and unpack them in DATA/omniglot"
)
EDGE, NUM_TRAIN_ALPHABETS = 105, 20
TURNS = (90, 180, 270)
_ENDING, _ROW_BYTES, _MARK = ".bits_105x105" + packed.COMPRESSED, 1379, "#turn="
_MAX_BYTES = 2**28  # of the .npz; the true one has 27 MB
# Images of the background set and of the evaluation set.


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Literal["background", "official"] = "background",
    validation_alphabets: int = 0,
    num_classes: int = 0,
    turns: tuple[int, ...] = (),
) -> list[Item]:
    """List the drawings of one split, sorted, with the character as label.

    Ids are "ALPHABET/characterNN/0709_01". Alphabets are divided, never the characters of one
    alphabet.

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        protocol: "background": of the 30 background alphabets, the first 20 in alphabetical order
            train and the last 10 test. "official": background trains and the 20 evaluation
            alphabets test (Lake et al. 2015; needs images_evaluation).
        validation_alphabets: So many of the training alphabets, the last ones, are "validation".
        num_classes: How many characters of the split are taken, drawn with numpy's seed 0. A larger
            number holds the characters of a smaller one. 0 takes all.
        turns: Multiples of 90 degrees. Turned by them, characters are new training classes (Santoro
            et al., ICML 2016, Sec. 4.1) with "#turn=90" at the end of id and label; omniglot.read
            turns them.

    Raises:
        LikenessError: The images are missing; the message says what to fetch. The layout is another
            one, there are too few alphabets or characters, or a turn is none of these.
    """
    check_split(split)
    if (
        protocol not in ("background", "official")
        or not set(turns) <= set(TURNS)
        or len(set(turns)) < len(turns)
    ):
        raise LikenessError(
            f"omniglot: protocol {protocol!r} with turns {turns}; 'background' or 'official' and "
            f"turns of {TURNS}, each once, are allowed"
        )
    folders = (Path(data) / "omniglot", Path(data) / "omniglot-py")
    root = next((folder for folder in folders if folder.is_dir()), Path(data))
    every, train, test = _divide(root, protocol)
    if not 0 <= validation_alphabets < len(train) or (
        split == "validation" and not validation_alphabets
    ):
        raise LikenessError(
            f"omniglot: validation_alphabets is {validation_alphabets} with split {split!r}; 1 to "
            f"{len(train) - 1} are allowed there, 0 elsewhere"
        )
    cut = len(train) - validation_alphabets
    members = {
        "train": set(train[:cut]),
        "validation": set(train[cut:]),
        "test": set(test),
        "all": {*train, *test},
    }[split]
    chosen = _drawn([item for item in every if _alphabet(item) in members], num_classes)
    return turned(chosen, turns) if split == "train" else chosen


def _drawn(chosen: list[Item], num_classes: int) -> list[Item]:
    """The items of so many drawn characters; of all where num_classes is 0."""
    if num_classes == 0:
        return chosen
    names = sorted({str(item.label) for item in chosen})
    if not isinstance(num_classes, int) or not 2 <= num_classes <= len(names):
        raise LikenessError(
            f"omniglot: num_classes is {num_classes}; 2 to {len(names)} are allowed, or 0 for all"
        )
    order = np.random.default_rng(0).permutation(len(names))
    members = {names[place] for place in order[:num_classes]}
    return [item for item in chosen if item.label in members]


def _divide(root: Path, protocol: str) -> tuple[list[Item], list[str], list[str]]:
    """List all drawings, the alphabets that train, and the alphabets that test."""
    every = _background(root)
    alphabets = sorted({_alphabet(item) for item in every})
    if protocol == "official":
        evaluation = _scan(root / "images_evaluation")
        return every + evaluation, alphabets, sorted({_alphabet(item) for item in evaluation})
    if len(alphabets) <= NUM_TRAIN_ALPHABETS:
        raise LikenessError(
            f"{root}: {len(alphabets)} background alphabets; more than {NUM_TRAIN_ALPHABETS} are "
            f"needed; {FETCH}"
        )
    return every, alphabets[:NUM_TRAIN_ALPHABETS], alphabets[NUM_TRAIN_ALPHABETS:]


def turned(items: Iterable[Item], turns: Iterable[int] = TURNS) -> list[Item]:
    """Return the items, then one copy of all for each turn, with "#turn=90" after id and label.

    Example:
        >>> copies = turned([Item("a/1", Path("a/1.png"), "a")], turns=(90,))
        >>> [(item.id, item.label) for item in copies]
        [('a/1', 'a'), ('a/1#turn=90', 'a#turn=90')]
    """
    originals = list(items)
    copies = list(originals)
    for turn in turns:
        copies += [
            item._replace(
                id=f"{item.id}{_MARK}{turn}",
                label=None if item.label is None else f"{item.label}{_MARK}{turn}",
            )
            for item in originals
        ]
    return copies


def read(item: Item, *, edge: int = EDGE) -> Floats:
    """Read an item as (1, edge, edge) float32, where ink is 255 on 0.

    It is turned to the left as the ending of its id, such as "#turn=90", says.

    Args:
        item: A drawing.
        edge: The height and width; other than 105, the drawing is resized (antialiased).

    Raises:
        BadImage: As images.read, for rows outside the packed file, and for a turn that is no
            multiple of 90 from 90 to 270.
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
    """Return the alphabet of an item."""
    return item.id.partition("/")[0]


def _background(root: Path) -> list[Item]:
    """List the drawings of the background set, from its folders or its packed form."""
    where = packed.locate(root, ("images_background.npz", "images_background"), FETCH)
    if where.is_dir():
        return _scan(where)
    try:
        label, classes, name = (_array(where, key) for key in ("label", "class_name", "name"))
        rows = _ink(where, where.stat().st_mtime_ns)
        if not (
            label.ndim == 1
            and len(label) == len(name) == len(rows)
            and len(label)
            and 0 <= label.min() <= label.max() < len(classes)
        ):
            raise LikenessError(
                f"{len(label)} labels and {len(name)} names for {len(rows)} images of "
                f"{len(classes)} classes"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise LikenessError(f"{where}: not the packed background set ({error}); {FETCH}") from error
    characters = [str(classes[number]) for number in label.tolist()]
    return [
        Item(f"{character}/{drawing}", where, character, (i * _ROW_BYTES, _ROW_BYTES), _ENDING)
        for i, (character, drawing) in enumerate(zip(characters, name.tolist(), strict=True))
    ]


def _scan(folder: Path) -> list[Item]:
    """List the drawings below a folder of alphabets."""
    if not folder.is_dir():
        raise LikenessError(f"{folder}: no such folder; {FETCH}")
    files = sorted(folder.glob("*/*/*.png"))
    if not files:
        loose = name_first(sorted(path.name for path in folder.iterdir()))
        raise LikenessError(
            f"{folder}: no ALPHABET/characterNN/*.png, but {loose or 'nothing'}; {FETCH}"
        )
    listed = []
    for path in files:
        inner = path.relative_to(folder)
        listed.append(Item(inner.with_suffix("").as_posix(), path, inner.parent.as_posix()))
    return listed


def _array(path: Path, member: str) -> NDArray[Any]:
    """Return one array of an .npz of a sensible size; nothing pickled is read.

    Raises:
        KeyError: There is no array of this name.
    """
    with npz.opened(path, _MAX_BYTES, FETCH) as archive:
        return archive.read(member)


@lru_cache(maxsize=1)
def _ink(path: Path, mtime_ns: int) -> NDArray[np.uint8]:
    """Return the packed rows (N, 1379), decompressed once in each process: 27 MB."""
    rows = _array(path, "ink_packed")
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != _ROW_BYTES:
        raise LikenessError(
            f"ink_packed is {rows.dtype} {rows.shape}, (N, {_ROW_BYTES}) uint8 is needed"
        )
    return rows


def _row(item: Item) -> NDArray[np.uint8]:
    """Return the packed bits (1379,) of one item of the .npz."""
    try:
        offset, size = item.span or (0, 0)
        every = _ink(item.path, item.path.stat().st_mtime_ns).reshape(-1)
        row = every[max(0, offset) : max(0, offset + size)]
    except (OSError, ValueError, KeyError) as error:
        raise BadImage(f"{item.name}: {error}; {FETCH}") from error
    if len(row) != _ROW_BYTES:
        raise BadImage(
            f"{item.name}: {len(row)} bytes of packed bits; {_ROW_BYTES} are needed; list the "
            "data anew"
        )
    return row
