"""Cars196: 16,185 photographs of 196 models of cars (Krause et al. 2013); the first 98 to train on
and 98 unseen ones to test, over the authors' two halves.

Layouts: DATA/cars_annos.mat with DATA/car_ims/*.jpg, or the later DATA/cars_train/, DATA/cars_test/
with DATA/devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat (there or in DATA); each
also in DATA/cars196, DATA/stanford_cars. Folders by name instead:
folders.items(protocol="standard").
"""

from __future__ import annotations

from pathlib import Path

from eval.formats.mat import cars_annotations
from modalities.image import packed
from modalities.image.lists import check_whole, inside
from modalities.image.splits import Protocol, Split, of_classes
from toolkit.data.batch import Item
from toolkit.data.source import Count

FETCH = (
    "fetch car_ims.tgz and cars_annos.mat (non-commercial research; its site is gone, mirrors "
    "carry it) and unpack them in DATA"
)
# pytorch-metric-learning, datasets/cars196.py; torchvision, datasets/stanford_cars.py
MD5 = {
    "cars_annos.mat": "b407c6086d669747186bd1d764ff9dbc",
    "car_ims.tgz": "d5c8f0aa497503f355e17dc7886c3f14",
}
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 196, 98, 16_185
_MAX_MAT = (
    2**20
)  # the true ones have .4 MB; what they inflate to is at most a thousand times as much
_COUNTS: tuple[tuple[Split, str, int], ...] = (
    ("train", "train on", 8_054),
    ("test", "test on", 8_131),
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> list[Item]:
    """Items with id "car_ims/000001.jpg" (or "cars_train/00001.jpg") and the model's number as
    label "001" ... "196"; splits: splits.divide_classes.

    standard: 8,054 images of classes 1 to 98 to train, 8,131 of 99 to 196 to test. whole=False:
    parts of the data set, for trying things out; the classes are divided all the same.
    FileNotFoundError says what to fetch; ValueError for lists that are not this data set's and, if
    `whole`, for missing images, counted.
    """
    data = Path(data)
    root = next((one for one in (data / "cars196", data / "stanford_cars") if one.is_dir()), data)
    if (root / "cars_annos.mat").is_file():
        listed = _annotations(root / "cars_annos.mat", "relative_im_path", "")
    else:
        listed = []
        for part, names in (
            ("cars_train", ("cars_train_annos.mat",)),
            ("cars_test", ("cars_test_annos_withlabels.mat",)),
        ):
            mat = packed.locate(
                root,
                tuple(
                    f"{folder}{name}"
                    for folder in ("devkit/", "")
                    for name in ("cars_annos.mat", *names)
                ),
                FETCH,
            )
            listed += _annotations(mat, "fname", f"{part}/")
    found = check_whole(
        [Item(id, root / id, f"{number:03d}") for id, number in listed],
        root,
        NUM_IMAGES,
        whole,
        FETCH,
    )
    classes = [f"{i:03d}" for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        found, classes, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="cars"
    )


def check(data: Path) -> list[Count]:
    """What `likeness prepare cars196` counts. Raises as items()."""
    return [
        Count(f"images of Cars196 to {use}", len(items(data, split=split)), number)
        for split, use, number in _COUNTS
    ]


def verify(data: str | Path) -> None:
    """ValueError unless DATA/cars_annos.mat and DATA/car_ims.tgz are the published files."""
    packed.verify(Path(data), MD5)


def _annotations(path: Path, field: str, prefix: str) -> list[tuple[str, int]]:
    """(path below the root, class 1 to 196) of every image in a .mat file."""
    if path.stat().st_size > _MAX_MAT:
        raise ValueError(
            f"{path}: over {_MAX_MAT} bytes; these are no annotations of Cars196: {FETCH}"
        )
    try:
        listed = [(f"{prefix}{name}", number) for name, number in cars_annotations(path, field)]
    except ValueError as error:
        raise ValueError(
            f"{path}: no annotations with the fields {field!r} and 'class' "
            f"({str(error).removeprefix(f'{path}: ')[:160]}); {FETCH}"
        ) from None
    wrong = [id for id, number in listed if not 1 <= number <= NUM_CLASSES or not inside(id)]
    if wrong:
        raise ValueError(
            f"{path}: {len(wrong)} of {len(listed)} images have a class outside 1 to {NUM_CLASSES} "
            f"or a path outside the folder, {wrong[0]!r}; {FETCH}"
        )
    return listed
