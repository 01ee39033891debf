"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 in 10 classes.

They are the UCI Optdigits (Alpaydin and Kaynak 1998): real data that is always there. They lie in
scikit-learn's own digits.csv.gz, one line for each image: 64 levels from 0 to 16, then the class.
An item is such a line.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from eval.errors import LikenessError
from eval.types import Trials
from modalities.image import packed
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.images import BadImage, to_floats
from toolkit.data.items import Item
from toolkit.data.pairs import draw_pairs
from toolkit.data.reading import Floats

EDGE = 8
_ENDINGS = (".digits", ".digits" + packed.COMPRESSED)
_LAST_TRAIN_CLASS = "5"


def items(
    data: str | Path | None = None,
    *,
    split: Split = "train",
    protocol: Literal["closed", "open"] = "closed",
    test_share: float = 0.25,
    validation_share: float = 0.0,
    seed: int = 0,
    files: bool = False,
) -> list[Item]:
    """List the images of one split in the file's order, with "0" to "9" as label.

    Args:
        data: The folder that `write` wrote to, if `files` is set. Otherwise it is not used; it is
            here because a recipe gives it to every data set.
        split: "train", "validation", "test" or "all".
        protocol: "closed": `test_share` of each class's images tests. "open": the classes 0 to 5
            train and the unseen 6 to 9 test.
        test_share: The share of each class's images that tests, in the closed protocol.
        validation_share: The share of each training class's images that validates.
        seed: Decides which images test and validate.
        files: Whether to list the files that write(data) wrote, "0/0000.png", which images.read
            reads, instead of the lines "digits/0000".

    Raises:
        LikenessError: A share is outside 0 to 1, or leaves the split empty.

    Example:
        >>> len(items(split="train")), len(items(split="test"))
        (1347, 450)
    """
    check_split(split)
    if protocol not in ("closed", "open"):
        raise LikenessError(f"digits: protocol is {protocol!r}; allowed are 'closed' and 'open'")
    every = _items()
    if protocol == "open":
        rest = [item for item in every if str(item.label) <= _LAST_TRAIN_CLASS]
        test = [item for item in every if str(item.label) > _LAST_TRAIN_CLASS]
    else:
        first, last = stratified([str(item.label) for item in every], test_share, seed=seed)
        rest, test = [every[i] for i in first], [every[i] for i in last]
    train, validation = stratified([str(item.label) for item in rest], validation_share, seed=seed)
    chosen = {
        "train": [rest[i] for i in train],
        "validation": [rest[i] for i in validation],
        "test": test,
        "all": every,
    }[split]
    if not chosen:
        raise LikenessError(
            f"digits: split {split!r} is empty with test_share {test_share} and validation_share "
            f"{validation_share}; set its share above 0"
        )
    if not files:
        return chosen
    root = Path(data or ".")
    return [
        item._replace(id=_file(item), path=root / _file(item), span=None, ending="")
        for item in chosen
    ]


def trials(
    data: str | Path, *, num_trials: int = 20_000, test_share: float = 0.25, seed: int = 0
) -> tuple[list[Item], Trials]:
    """List the test images that write(data) wrote, and trials: do two show the same digit?

    Args:
        data: The folder that `write` wrote to.
        num_trials: The number of trials, half of each kind.
        test_share: The share of each class's images that tests.
        seed: Decides the images and the trials.
    """
    chosen = items(data, split="test", test_share=test_share, seed=seed, files=True)
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def read(item: Item, *, edge: int = EDGE) -> Floats:
    """Read an item as (1, edge, edge) float32, where ink is 255 on 0.

    Args:
        item: A line of the file of digits.
        edge: The height and width; other than 8, the image is resized (bilinear).

    Raises:
        BadImage: The item is anything but a line of this file.

    Example:
        >>> read(items()[0]).shape
        (1, 8, 8)
    """
    try:
        levels = np.array(packed.stretch(item).decode("ascii").split(",")[:-1], dtype=np.int64)
        if (
            item.suffix not in _ENDINGS
            or levels.shape != (EDGE * EDGE,)
            or levels.min() < 0
            or levels.max() > 16
        ):
            raise LikenessError(
                f"{levels.size} numbers from {levels.min(initial=0)} to {levels.max(initial=0)}"
            )
    except (OSError, ValueError, OverflowError) as error:
        raise BadImage(
            f"{item.name}: no line of 64 levels from 0 to 16 ({str(error)[:100]}); list the digits "
            "anew"
        ) from error
    pixels = np.round(levels * (255 / 16)).astype(np.uint8).reshape(EDGE, EDGE)
    if edge != EDGE:
        image = Image.fromarray(pixels).resize((edge, edge), Image.Resampling.BILINEAR)
        pixels = np.asarray(image)
    return to_floats(pixels)


def write(root: Path) -> None:
    """Write all digits as files root/CLASS/0000.png of 8 x 8, which folders.items then lists."""
    for item in _items():
        path = root / _file(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(read(item)[0].astype(np.uint8)).save(path)


def _file(item: Item) -> str:
    """Return the path of an item's file below the folder that `write` writes."""
    return f"{item.label}/{item.id.rpartition('/')[2]}.png"


def _items() -> list[Item]:
    """List all digits."""
    path = Path(str(resources.files("sklearn.datasets.data") / "digits.csv.gz"))
    listed: list[Item] = []
    start = 0
    for number, line in enumerate(packed.stretch(Item(path.name, path)).splitlines(keepends=True)):
        label = line.rstrip().rpartition(b",")[2].decode()
        span = (start, len(line))
        listed.append(Item(f"digits/{number:04d}", path, label, span, _ENDINGS[1]))
        start += len(line)
    return listed
