"""Small data sets of images: MNIST, FashionMNIST, CIFAR, Omniglot and scikit-learn's digits.

Each has a function that lists its items. `read` reads Omniglot and the digits; `images.read` reads
the others. Where a data set lies below DATA:

- MNIST and FashionMNIST: the four IDX files, plain or .gz, in mnist/ or MNIST/raw (torchvision's),
  fashion_mnist/, FashionMNIST/raw or fashion-mnist/.
- CIFAR: the binary version, cifar-10-batches-bin/ or cifar-100-binary/. Its Python version is a
  pickle and is not read.
- Omniglot: omniglot/images_background/ALPHABET/characterNN/*.png; or the same
  packed into omniglot/images_background.npz, which has `ink_packed` (N, 1379) uint8,
  each row 105 x 105 bits; `label` (N,); `class_name` (964,), "ALPHABET/characterNN"; `name` (N,).
- The digits lie in scikit-learn itself: 64 levels from 0 to 16 and the class on every line.
"""

import math
import struct
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from likeness.eval.errors import LikenessError
from likeness.eval.formats import npz
from likeness.eval.items.items import Item
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.types import Trials, check_choice
from likeness.modalities.image import _packed, images
from likeness.modalities.image._splits import Split, hold_out
from likeness.toolkit.data.images import BadImage, as_channels
from likeness.toolkit.data.reading import Floats
from likeness.toolkit.sources import Source, source_of

_MNIST_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", ""),
    "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw", "fashion-mnist", ""),
}
_CLOTHES = "T-shirt/top, Trouser, Pullover, Dress, Coat, Sandal, Shirt, Sneaker, Bag, Ankle boot"
MNIST_CLASSES = {"mnist": tuple("0123456789"), "fashion_mnist": tuple(_CLOTHES.split(", "))}
_FETCH_OMNIGLOT = "`likeness prepare omniglot --data DATA` fetches it"
OMNIGLOT_EDGE, DIGITS_EDGE = 105, 8
_NUM_TRAIN_ALPHABETS = 20
_BITS, _ROW_BYTES = ".bits_105x105" + _packed.COMPRESSED, 1379
_LINE = ".digits" + _packed.COMPRESSED


def mnist_items(
    data: str | Path,
    *,
    split: Split = "train",
    validation_share: float = 0.0,
    seed: int = 1234,
    name: Literal["mnist", "fashion_mnist"] = "mnist",
) -> list[Item]:
    """List the images of MNIST or FashionMNIST in the files' order, with the class as label.

    Ids are "train/00000" and "test/00000".

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        validation_share: The share of each class of the training file that is held out as
            "validation". 0.15 with seed 1234 is the vMF paper's split (splits.stratified).
        seed: Decides which images are held out.
        name: "mnist" or "fashion_mnist".

    Raises:
        LikenessError: A file is missing; the message says what to fetch. A file is damaged, cut
            short or no such IDX file, or split is "validation" with a share of 0.
    """
    check_choice("name", name, MNIST_CLASSES)
    fetch = f"`likeness prepare {name} --data DATA` fetches it"
    folder = _packed.locate(Path(data), _MNIST_FOLDERS[name], fetch)
    # The release splits by the classes' numbers, and FashionMNIST's names sort in another order.
    number = {label: i for i, label in enumerate(MNIST_CLASSES[name])}
    return _divided(
        lambda: _mnist_part(folder, "train", name, fetch),
        lambda: _mnist_part(folder, "t10k", name, fetch),
        lambda item: number[str(item.label)],
        *(split, validation_share, seed),
    )


def _divided(
    train: Callable[[], list[Item]],
    test: Callable[[], list[Item]],
    number: Callable[[Item], Any],
    split: Split,
    share: float,
    seed: int,
) -> list[Item]:
    """Return the items of a split, of a part that trains and validates and of one that tests.

    number: what the classes are sorted by, on which the draw depends.
    """
    check_choice("split", split, get_args(Split))
    if split in ("test", "all"):
        return (train() if split == "all" else []) + test()
    if split == "validation" and share == 0:
        raise LikenessError(
            "split 'validation' with validation_share 0 has no items; set it, to 0.15 as in the "
            "vMF paper"
        )
    items = train()
    rest, validation = hold_out([number(item) for item in items], share, seed=seed)
    return [items[i] for i in (rest if split == "train" else validation)]


def _mnist_part(folder: Path, part: str, name: str, fetch: str) -> list[Item]:
    """List all items of the training or test file."""
    images_file, labels_file = (
        _idx_file(folder, f"{part}-{kind}-ubyte", fetch) for kind in ("images-idx3", "labels-idx1")
    )
    (num_images, height, width), _ = _idx(images_file, 3)
    (num_labels,), labels = _idx(labels_file, 1)
    if num_images != num_labels or labels.max(initial=0) > 9:
        raise LikenessError(
            f"{images_file}: {num_images} images, but {labels_file.name} has {num_labels} labels "
            f"up to {labels.max(initial=0)}; fetch both again"
        )
    size = height * width
    ending = _packed.ending_inside(images.raw_ending(1, height, width), images_file)
    prefix, names = "train" if part == "train" else "test", MNIST_CLASSES[name]
    return [
        Item(f"{prefix}/{i:05d}", images_file, names[label], (16 + i * size, size), ending)
        for i, label in enumerate(labels.tolist())
    ]


def _idx_file(folder: Path, stem: str, fetch: str) -> Path:
    """Return the file of this name, plain or .gz; some copies have a dot in it, ".idx3"."""
    for name in (stem, stem.replace("-idx", ".idx")):
        for path in (folder / f"{name}.gz", folder / name):
            if path.is_file():
                return path
    raise LikenessError(f"{folder}: neither {stem}.gz nor {stem} is there; {fetch}")


def _idx(path: Path, num_sizes: int) -> tuple[tuple[int, ...], NDArray[np.uint8]]:
    """Return the sizes that the header of an IDX file states, and the bytes behind it.

    Format (http://yann.lecun.com/exdb/mnist): a header of big-endian numbers, then bare bytes.
    """
    content, start = _packed.stretch(Item(path.name, path)), 4 * (1 + num_sizes)
    magic, *sizes = struct.unpack_from(f">{1 + num_sizes}I", content.ljust(start, b"\0"))
    if magic != 0x800 + num_sizes or len(content) != start + math.prod(sizes):
        raise LikenessError(
            f"{path}: {len(content)} bytes are not what the header of an IDX file of {num_sizes} "
            "sizes states; it is cut short or another file: fetch it again"
        )
    return tuple(sizes), np.frombuffer(content, dtype=np.uint8, offset=start)


_CIFAR_FOLDERS = {10: "cifar-10-batches-bin", 100: "cifar-100-binary"}
_CIFAR_FILES = {
    (10, "train"): tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    (10, "test"): ("test_batch.bin",),
    (100, "train"): ("train.bin",),
    (100, "test"): ("test.bin",),
}


def cifar_items(
    data: str | Path,
    *,
    split: Split = "train",
    validation_share: float = 0.0,
    seed: int = 1234,
    num_classes: int = 10,
    whole: bool = True,
) -> list[Item]:
    """List the images of CIFAR-10 or CIFAR-100 in the files' order, with the class as label.

    Ids are "train/00000" and "test/00000". The Python version has the same order.

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        validation_share: As for mnist_items.
        seed: Decides which images are held out.
        num_classes: 10 or 100, which data set.
        whole: Whether all 60,000 images must be there. False is for trying things out.

    Raises:
        LikenessError: The data set is not there; the message says what to fetch. A file is cut
            short or damaged, or the settings do not fit together.
    """
    if num_classes not in _CIFAR_FOLDERS:
        raise LikenessError(f"num_classes is {num_classes}; allowed are 10 and 100")
    fetch = f"`likeness prepare cifar{num_classes} --data DATA` fetches its binary version"
    folder = _packed.locate(Path(data), (_CIFAR_FOLDERS[num_classes],), fetch)
    table = "batches.meta.txt" if num_classes == 10 else "fine_label_names.txt"
    names = _cifar_file(folder, table).decode("latin-1").split()
    if len(set(names)) != num_classes:
        raise LikenessError(f"{folder / table}: {len(set(names))} names of classes; {fetch}")
    return _divided(
        lambda: _cifar_part(folder, "train", num_classes, names, 50_000 * whole),
        lambda: _cifar_part(folder, "test", num_classes, names, 10_000 * whole),
        lambda item: str(item.label),
        *(split, validation_share, seed),
    )


def _cifar_file(folder: Path, name: str) -> bytes:
    """Return what a file of CIFAR holds."""
    if not (folder / name).is_file():
        raise LikenessError(f"{folder}: there is no {name}; unpack the binary version again")
    return (folder / name).read_bytes()


def _cifar_part(
    folder: Path, part: str, num_classes: int, names: list[str], needed: int
) -> list[Item]:
    """List all items of the training files or of the test file, of which so many are needed.

    Format (https://www.cs.toronto.edu/~kriz/cifar.html): each image is one label byte (CIFAR-100:
    coarse and fine) and 3 x 32 x 32 bytes: red, green, blue, each row by row.
    """
    label_bytes = 1 if num_classes == 10 else 2
    size = label_bytes + 3072
    listed: list[Item] = []
    for file in _CIFAR_FILES[num_classes, part]:
        content = _cifar_file(folder, file)
        labels = np.frombuffer(content, dtype=np.uint8)[label_bytes - 1 :: size]
        if len(content) % size or labels.max(initial=0) >= len(names):
            raise LikenessError(
                f"{folder / file}: {len(content)} bytes with labels up to {labels.max(initial=0)}; "
                f"images of {size} bytes of {len(names)} classes are needed: fetch it again"
            )
        first = len(listed)
        for i, label in enumerate(labels.tolist()):
            span = (i * size + label_bytes, 3072)
            ending = images.raw_ending(3, 32, 32)
            listed.append(
                Item(f"{part}/{first + i:05d}", folder / file, names[label], span, ending)
            )
    if needed and len(listed) != needed:
        raise LikenessError(f"{folder}: {len(listed)} images to {part}; {needed} are needed")
    return listed


def omniglot_items(
    data: str | Path, *, split: Literal["train", "test", "all"] = "train"
) -> list[Item]:
    """List the drawings of one split of Omniglot, sorted, with the character as label.

    1,623 characters of 50 alphabets, each drawn by 20 people (Lake et al., Science 2015). Ids are
    "ALPHABET/characterNN/0709_01". Alphabets are divided, never the characters of one alphabet: of
    the 30 background alphabets, the first 20 in alphabetical order train and the last 10 test.

    Args:
        data: The folder DATA.
        split: "train", "test" or "all".

    Raises:
        LikenessError: The images are missing; the message says what to fetch. The layout is another
            one, or there are too few alphabets.
    """
    check_choice("split", split, ("train", "test", "all"))
    root = _packed.locate(Path(data), ("omniglot", "omniglot-py", ""), _FETCH_OMNIGLOT)
    every = _background(root)
    alphabets = sorted({_alphabet(item) for item in every})
    first, last = alphabets[:_NUM_TRAIN_ALPHABETS], alphabets[_NUM_TRAIN_ALPHABETS:]
    members = {"train": first, "test": last, "all": alphabets}[split]
    if not members:
        raise LikenessError(
            f"{root}: split {split!r} is empty with {len(alphabets)} alphabets; {_FETCH_OMNIGLOT}"
        )
    return [item for item in every if _alphabet(item) in members]


def _alphabet(item: Item) -> str:
    """Return the alphabet of a drawing."""
    return item.id.partition("/")[0]


def _background(root: Path) -> list[Item]:
    """List the drawings of the background set, from its folders or its packed form."""
    names = ("images_background.npz", "images_background")
    where = _packed.locate(root, names, _FETCH_OMNIGLOT)
    if where.is_dir():
        return _drawings(where)
    try:
        label, classes, name = npz.read(where, ["label", "class_name", "name"]).values()
        if len(_ink(where, source_of(where))) != len(label) or label.min(initial=0) < 0:
            raise LikenessError(f"{len(label)} labels are not those of its images")
        characters = [str(classes[number]) for number in label.tolist()]
        return [
            Item(f"{character}/{drawing}", where, character, (i * _ROW_BYTES, _ROW_BYTES), _BITS)
            for i, (character, drawing) in enumerate(zip(characters, name.tolist(), strict=True))
        ]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise LikenessError(
            f"{where}: not the packed background set ({error}); {_FETCH_OMNIGLOT}"
        ) from error


def _drawings(folder: Path) -> list[Item]:
    """List the drawings below a folder of alphabets."""
    files = sorted(folder.glob("*/*/*.png"))
    if not files:
        raise LikenessError(f"{folder}: no ALPHABET/characterNN/*.png; {_FETCH_OMNIGLOT}")
    inner = [path.relative_to(folder) for path in files]
    return [
        Item(name.with_suffix("").as_posix(), path, name.parent.as_posix())
        for name, path in zip(inner, files, strict=True)
    ]


@lru_cache(maxsize=1)
def _ink(path: Path, source: Source) -> NDArray[np.uint8]:
    """Return the packed rows (N, 1379), decompressed once in each process: 27 MB."""
    rows = npz.read(path, ["ink_packed"])["ink_packed"]
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != _ROW_BYTES:
        raise LikenessError(
            f"ink_packed is {rows.dtype} {rows.shape}, (N, {_ROW_BYTES}) uint8 is needed"
        )
    return rows


def digits_items(
    data: str | Path | None = None,
    *,
    split: Split = "train",
    protocol: Literal["closed", "open"] = "closed",
    test_share: float = 0.25,
    validation_share: float = 0.0,
    seed: int = 0,
    files: bool = False,
) -> list[Item]:
    """List scikit-learn's 1,797 handwritten digits of one split, with "0" to "9" as label.

    They are the UCI Optdigits (Alpaydin and Kaynak 1998) of 8 x 8 pixels, which are always there.

    Args:
        data: The folder that `write_digits` wrote to, if `files` is set; otherwise it is not used.
        split: "train", "validation", "test" or "all".
        protocol: "closed": `test_share` of each class's images tests. "open": the classes 0 to 5
            train and the unseen 6 to 9 test.
        test_share: The share of each class's images that tests, in the closed protocol.
        validation_share: The share of each training class's images that validates.
        seed: Decides which images test and validate.
        files: Whether to list the files that write_digits(data) wrote, "0/0000.png", which
            images.read reads, instead of the lines "digits/0000".

    Raises:
        LikenessError: A share is outside 0 to 1, or leaves the split empty.

    Example:
        >>> len(digits_items(split="train")), len(digits_items(split="test"))
        (1347, 450)
    """
    check_choice("protocol", protocol, ("closed", "open"))
    every = _digits()
    if protocol == "open":
        rest = [item for item in every if str(item.label) <= "5"]
        test = [item for item in every if str(item.label) > "5"]
    else:
        first, last = hold_out([str(item.label) for item in every], test_share, seed=seed)
        rest, test = [every[i] for i in first], [every[i] for i in last]
    chosen = every
    if split != "all":
        chosen = _divided(
            lambda: rest,
            lambda: test,
            lambda item: str(item.label),
            *(split, validation_share, seed),
        )
    if not chosen:
        raise LikenessError(
            f"split {split!r} is empty with test_share {test_share}; set it above 0"
        )
    if not files:
        return chosen
    root = Path(data or ".")
    return [
        item._replace(id=_digit_file(item), path=root / _digit_file(item), span=None, ending="")
        for item in chosen
    ]


def digits_trials(
    data: str | Path, *, num_trials: int = 20_000, test_share: float = 0.25, seed: int = 0
) -> tuple[list[Item], Trials]:
    """List the test images that write_digits(data) wrote, and trials: is it the same digit?

    Args:
        data: The folder that `write_digits` wrote to.
        num_trials: The number of trials, half of each kind.
        test_share: The share of each class's images that tests.
        seed: Decides the images and the trials.
    """
    chosen = digits_items(data, split="test", test_share=test_share, seed=seed, files=True)
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def write_digits(root: Path) -> None:
    """Write all digits as files root/CLASS/0000.png of 8 x 8."""
    for item in _digits():
        path = root / _digit_file(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(read(item)[0].astype(np.uint8)).save(path)


def _digit_file(item: Item) -> str:
    """Return the path of a digit's file below the folder that `write_digits` writes."""
    return f"{item.label}/{item.id.rpartition('/')[2]}.png"


def _digits() -> list[Item]:
    """List all digits; an item is a line of scikit-learn's file."""
    path = Path(str(resources.files("sklearn.datasets.data") / "digits.csv.gz"))
    listed: list[Item] = []
    start = 0
    for number, line in enumerate(_packed.stretch(Item(path.name, path)).splitlines(keepends=True)):
        label = line.rstrip().rpartition(b",")[2].decode()
        listed.append(Item(f"digits/{number:04d}", path, label, (start, len(line)), _LINE))
        start += len(line)
    return listed


def read(item: Item, *, edge: int = 0, takes_files: bool = True) -> Floats:
    """Read an item of Omniglot or of the digits as (1, edge, edge) float32, ink 255 on 0.

    Args:
        item: A drawing or a digit.
        edge: The height and width that it is resized to (bilinear, antialiased); 0 leaves it, with
            105 of a drawing and 8 of a digit.
        takes_files: Whether files of images are drawings, black ink on white. A model of the digits
            takes none, since digits in files have white ink on black.

    Raises:
        BadImage: As images.read, and for what is no row or line of the packed file.

    Example:
        >>> read(digits_items()[0]).shape
        (1, 8, 8)
    """
    if item.suffix in (_LINE, _BITS):
        ink = _unpacked(item)
    elif not takes_files:
        raise BadImage(f"item {item.id!r}: it is no line of the digits")
    else:
        ink = (255 - images.read(item, grey=True)[0]).astype(np.uint8)
    if edge and ink.shape != (edge, edge):
        ink = np.asarray(Image.fromarray(ink).resize((edge, edge), Image.Resampling.BILINEAR))
    return as_channels(ink)


def _unpacked(item: Item) -> NDArray[np.uint8]:
    """Return the pixels (105, 105) or (8, 8) of a packed drawing or a digit."""
    try:
        if item.suffix == _LINE:
            text = _packed.stretch(item).decode("ascii")
            levels = np.array(text.split(",")[:-1], dtype=np.int64).reshape(8, 8)
            if not 0 <= levels.min() <= levels.max() <= 16:
                raise LikenessError(f"levels from {levels.min()} to {levels.max()}")
            return np.round(levels * (255 / 16)).astype(np.uint8)
        offset, size = item.span or (0, 0)
        every = _ink(item.path, source_of(item.path)).reshape(-1)
        row = every[max(0, offset) : max(0, offset + size)]
        bits = np.unpackbits(row)[: OMNIGLOT_EDGE**2].reshape(OMNIGLOT_EDGE, OMNIGLOT_EDGE)
        return bits * np.uint8(255)
    except (OSError, ValueError, KeyError, OverflowError) as error:
        raise BadImage(
            f"{item.name}: not a drawing or a digit as listed ({str(error)[:100]}); list the data "
            "anew"
        ) from error
