"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, 10 classes (UCI Optdigits,
Alpaydin and Kaynak 1998). Real and always there.

They lie in scikit-learn's own digits.csv.gz, one line of 64 levels 0 to 16 and the class for each;
an item is such a line.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from eval.types import Trials
from modalities.image import packed
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.batch import Floats, Item
from toolkit.data.images import BadImage, to_floats
from toolkit.data.pairs import draw_pairs

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
    """Items "digits/0000" with "0" to "9" as label, in the file's order.

    `data` is not used: a recipe gives it to every data set.

    files: what write(data) wrote instead, "0/0000.png", to be read by images.read.

    protocol "closed": test_share of each class's images tests. "open": the classes 0 to 5 train and
    the unseen 6 to 9 test. validation_share: of each training class's images. ValueError for shares
    outside 0 to 1, and a split that these leave empty.
    """
    check_split(split)
    if protocol not in ("closed", "open"):
        raise ValueError(f"digits: protocol is {protocol!r}; allowed are 'closed' and 'open'")
    every = _items()
    if protocol == "open":
        rest = [one for one in every if str(one.label) <= _LAST_TRAIN_CLASS]
        test = [one for one in every if str(one.label) > _LAST_TRAIN_CLASS]
    else:
        first, last = stratified([str(one.label) for one in every], test_share, seed=seed)
        rest, test = [every[i] for i in first], [every[i] for i in last]
    train, validation = stratified([str(one.label) for one in rest], validation_share, seed=seed)
    chosen = {
        "train": [rest[i] for i in train],
        "validation": [rest[i] for i in validation],
        "test": test,
        "all": every,
    }[split]
    if not chosen:
        raise ValueError(
            f"digits: split {split!r} is empty with test_share {test_share} and validation_share "
            f"{validation_share}; set its share above 0"
        )
    return (
        [
            one._replace(id=_file(one), path=Path(data or ".") / _file(one), span=None, ending="")
            for one in chosen
        ]
        if files
        else chosen
    )


def trials(
    data: str | Path, *, num_trials: int = 20_000, test_share: float = 0.25, seed: int = 0
) -> tuple[list[Item], Trials]:
    """The test images of the closed set that write(data) wrote, and trials among them: is it the
    same digit? num_trials of them, half of each kind.
    """
    chosen = items(data, split="test", test_share=test_share, seed=seed, files=True)
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def read(item: Item, *, edge: int = EDGE) -> Floats:
    """item -> (1, edge, edge) float32, ink 255 on 0; bilinear where edge is not 8.

    Raises BadImage for anything but a line of this file.
    """
    try:
        levels = np.array(packed.stretch(item).decode("ascii").split(",")[:-1], dtype=np.int64)
        if (
            item.suffix not in _ENDINGS
            or levels.shape != (EDGE * EDGE,)
            or levels.min() < 0
            or levels.max() > 16
        ):
            raise ValueError(
                f"{levels.size} numbers from {levels.min(initial=0)} to {levels.max(initial=0)}"
            )
    except (OSError, ValueError, OverflowError) as error:
        raise BadImage(
            f"{item.name}: no line of 64 levels from 0 to 16 ({str(error)[:100]}); list the digits "
            "anew"
        ) from error
    pixels = np.round(levels * (255 / 16)).astype(np.uint8).reshape(EDGE, EDGE)
    return to_floats(
        pixels
        if edge == EDGE
        else np.asarray(Image.fromarray(pixels).resize((edge, edge), Image.Resampling.BILINEAR))
    )


def write(root: Path) -> None:
    """All digits as files root/CLASS/0000.png, 8 x 8: a folder like one's own (folders.items)."""
    for item in _items():
        path = root / _file(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(read(item)[0].astype(np.uint8)).save(path)


def _file(item: Item) -> str:
    return f"{item.label}/{item.id.rpartition('/')[2]}.png"


def _items() -> list[Item]:
    path = Path(str(resources.files("sklearn.datasets.data") / "digits.csv.gz"))
    found: list[Item] = []
    at = 0
    for number, line in enumerate(packed.stretch(Item(path.name, path)).splitlines(keepends=True)):
        found.append(
            Item(
                f"digits/{number:04d}",
                path,
                line.rstrip().rpartition(b",")[2].decode(),
                (at, len(line)),
                _ENDINGS[1],
            )
        )
        at += len(line)
    return found
