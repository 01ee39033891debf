"""A person's own data of any modality: items, a split by label, and trials.

The data are a folder DATA/LABEL/**, whose sub-folders are the speakers, subjects or classes, or tar
shards, a list, a table, a Kaldi folder or an RTTM file (likeness.eval.items.listing), and for
faces also RecordIO files.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from likeness.eval.errors import LikenessError, refuse_unused
from likeness.eval.items.items import Items, label_numbers
from likeness.eval.items.levels import check_levels
from likeness.eval.items.listing import files_below, is_plain_folder, list_items
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.items.suffixes import suffixes_of
from likeness.eval.option import if_option
from likeness.eval.types import Trials, counted, name_first, quoted
from likeness.modalities.speaker.audio import SpeedItems, speed_copies
from likeness.toolkit.data import shards
from likeness.toolkit.data.splits import hold_out

Modality = Literal["speaker", "face", "image"]
Split = Literal["train", "validation", "test", "all"]
Listed = TypeVar("Listed")

_COMPRESSED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def items(
    data: str | Path,
    *,
    modality: Modality = "speaker",
    split: Split = "train",
    test_share: float = 0.2,
    validation_share: float = 0.0,
    seed: int = 0,
    columns: str = "",
    label: str = "",
    root: str = "",
    test: str = "",
    speeds: Sequence[float] = (),
    speed_items: SpeedItems = "all",
    every: Items | None = None,
) -> Items:
    """List the items of the labels of one split.

    Those of a folder are in order of label and path, those of a list in its order. The labels are
    divided, never the items of one label. A warning names the labels that are tested and have a
    single item, which nothing is like.

    Args:
        data: The folder of the labels' folders or of .tar shards, a .rec file of faces, a list, a
            table, a Kaldi folder or an RTTM file, of which every item has a label.
        modality: "speaker" lists recordings, "face" and "image" list images.
        split: "train", "validation", "test", or "all" for everything.
        test_share: The share of the labels that tests. round(test_share x labels), at least 2, are
            held out; with 0, none is.
        validation_share: The share of the other labels that validates, at least 2 of them.
        seed: The seed of the draw of these labels.
        columns: Which column of a table is which, as in "label=spk", where its name does not say.
        label: A pattern of paths, from which the labels are taken: "{label}_*.wav".
        root: The folder that relative paths start from, by default that of the list.
        test: Other data, all of which test, while all of `data` trains and validates.
        speeds: The speeds of copies of recordings, which are new classes (audio.speed_copies).
        speed_items: Which recordings are copied: "all", or "one" of each label.
        every: All items of the data, where they are listed already.

    Returns:
        Items whose id is the path below `data` and whose label is the first folder of it.

    Raises:
        LikenessError: The data are missing, there are no files of this modality, there is only one
            label, or there are too few labels to hold some out.
    """
    if test:
        test_share = 0.0
        if split == "test":
            data, split, every = test, "all", None
    if every is None:
        every = list_all(data, modality, columns=columns, label=label, root=root)
    label_numbers(every)  # refuses items without a label
    chosen = hold_out(
        every,
        split=split,
        test_share=test_share,
        validation_share=validation_share,
        seed=seed,
        where=data,
    )
    return speed_copies(chosen, speeds, speed_items=speed_items) if speeds else chosen


def trials(
    data: str | Path,
    *,
    modality: Modality = "speaker",
    split: Split = "test",
    num_trials: int = 20_000,
    test_share: float = 0.2,
    seed: int = 0,
    columns: str = "",
    label: str = "",
    root: str = "",
    test: str = "",
    every: Items | None = None,
) -> tuple[Items, Trials]:
    """List the items of a split and trials among them.

    All pairs are trials if there are at most num_trials. Otherwise the trials are a seeded draw,
    half target and half nontarget, none of them twice. Where one kind has fewer than half, all of
    it is taken, and the other kind fills up.

    Args:
        data: As in items(). So are modality, split, test_share, seed, columns, label, root, test
            and every.
        num_trials: The most trials that are made, at least 2.

    Returns:
        The items, and the labelled trials.

    Raises:
        LikenessError: No label has two items, or items() refuses the data.
    """
    chosen = items(
        data,
        modality=modality,
        split=split,
        test_share=test_share,
        seed=seed,
        columns=columns,
        label=label,
        root=root,
        test=test,
        every=every,
    )
    try:
        return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))
    except LikenessError as error:
        raise LikenessError(f"{data}: {error}") from None


def list_folder(data: str | Path, *, part: Callable[[Path], Listed], folder: str) -> Listed:
    """List another folder than the data that a recipe trains on, by a part of the recipe.

    Args:
        data: What is trained on, which is not looked at.
        part: part(folder), such as the trials of a data set.
        folder: The folder.
    """
    return part(Path(folder))


def list_all(
    data: str | Path,
    modality: Modality = "speaker",
    *,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
) -> Items:
    """List all items of whatever a person has; the arguments are those of items().

    A list of faces with bare paths, as OpenSphere's SUBJECT/image.jpg, has its folders as labels.

    Raises:
        LikenessError: The data or some of the files are missing, or cannot be understood. Columns
            of what is no table are named, or labels of a .rec file, which has its own.
    """
    path, suffixes = Path(data), suffixes_of(modality)
    _refuse_compressed([path])
    if modality == "face" and path.suffix == ".rec":
        refuse_unused(str(path), columns=columns, label=label)
        return scan(path, modality)
    listing: Any = {"suffixes": suffixes, "columns": columns, "root": root}
    if (path.is_file() or is_plain_folder(path)) and shards.are_at(path, suffixes):
        return shards.or_files(path, label=label, **listing).sorted_as_paths()
    if is_plain_folder(path, label) and not columns:
        return scan(path, modality)
    listed = list_items(path, label=label, **listing)
    if modality == "face" and path.suffix == ".txt" and not any(listed.labels):
        listed = list_items(path, label="{label}/*", **listing)
    return listed


def list_most(
    data: Path, modality: Modality | None = None, **listing: Any
) -> tuple[Items, Modality]:
    """List recordings or images, whichever most files of the data are by their endings.

    Args:
        data: Whatever `list_items` takes, tar shards, or a .rec file of faces.
        modality: What the items are, where that is known.
        listing: As for `list_items`.

    Returns:
        The items, whether or not their files exist; and what they are: "speaker" for recordings,
        "image" for images or "face" for a .rec file.

    Raises:
        LikenessError: The data do not exist. No file has an ending that is known.
    """
    if data.suffix == ".rec" and data.is_file() and modality in (None, "face"):
        refuse_unused(str(data), columns=listing.get("columns"), label=listing.get("label"))
        return _records(data), "face"
    sounds, pictures = suffixes_of("speaker"), suffixes_of("image")
    suffixes = suffixes_of(modality) if modality else (*sounds, *pictures)
    listed = shards.or_files(data, suffixes=suffixes, missing="leave", **listing)
    if modality:
        return listed, modality
    endings = [item.suffix for item in listed]
    voices, images = (sum(end in known for end in endings) for known in (sounds, pictures))
    if not voices + images:
        raise LikenessError(
            f"{data}: no path ends like a recording or an image, such as "
            f"{quoted(listed[0].path.as_posix())}; a list has lines `path` or `id path label`"
            + if_option(", or say what the files are by --modality")
        )
    modality = "speaker" if voices >= images else "image"
    if is_plain_folder(data):
        if others := len(listed) - max(voices, images):
            text = f"{data}: most files are {'recordings' if voices >= images else 'images'}"
            warnings.warn(f"{text}; {counted(others, 'other')} passed over", stacklevel=2)
        listed = listed.take(np.flatnonzero(np.isin(endings, suffixes_of(modality))))
    return listed, modality


def scan(root: Path, modality: Modality = "speaker") -> Items:
    """List every file of a modality below the folders of `root`, in the order of their paths.

    Hidden files are passed over. If `root` is or holds .tar shards (likeness.toolkit.data.shards),
    their items are listed instead, in the same order; and so are those of the .rec file that `root`
    is or holds, if it is of faces.

    Args:
        root: The folder of the labels' folders.
        modality: Which files count.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder.

    Raises:
        LikenessError: root is missing, there is no such file in any folder, there are several .rec
            files, or the first folders need not be the labels (levels.check_levels).
    """
    if modality == "face" and root.suffix == ".rec" and root.is_file():
        return _records(root)
    suffixes = suffixes_of(modality)
    if shards.are_at(root, suffixes):
        return shards.items(root, suffixes=suffixes).sorted_as_paths()
    if not root.is_dir():
        raise LikenessError(f"{root}: no such folder; one with DATA/LABEL/file is needed")
    if modality == "face" and (records := sorted(root.glob("*.rec"))):
        if len(records) > 1:
            raise LikenessError(
                f"{root}: there are {len(records)} .rec files "
                f"({name_first(path.name for path in records)}); name one of them"
            )
        return _records(records[0])
    listed = files_below(root, suffixes)
    has_label = listed.numbers >= 0
    labelled = listed if has_label.all() else listed.take(np.flatnonzero(has_label))
    if not labelled:
        beside = ""
        if listed:
            beside = (
                f"; {len(listed)} lie directly in it, without a folder of their label: name where "
                "the label is in their names, as in --label '{label}_*'"
            )
        else:
            _refuse_compressed(sorted(root.glob("*.*")))
        raise LikenessError(
            f"{root}: no {modality} files in its folders{beside}; DATA/LABEL/file is expected, "
            f"with one of {', '.join(suffixes)}"
        )
    check_levels(labelled.each_id(), root)
    return labelled


def _refuse_compressed(paths: Iterable[Path]) -> None:
    """Refuse shards that are compressed, from which no span can be read."""
    packed = [str(path) for path in paths if path.name.endswith(_COMPRESSED)]
    if packed:
        raise LikenessError(
            f"compressed shards cannot be read ({name_first(packed)}); uncompress them, as gunzip "
            "does, or unpack them into folders"
        )


def _records(path: Path) -> Items:
    """List the faces of a RecordIO file."""
    from likeness.modalities.face import recordio

    return recordio.items(path)
