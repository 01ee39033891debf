"""What people give to be embedded, as items: paths, folders, lists, tables, arrays, files."""

import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError, refuse_unused
from likeness.eval.formats.column_names import parse_columns
from likeness.eval.items.item_lists import SUFFIXES as TABLES
from likeness.eval.items.item_lists import listed_paths, read_items
from likeness.eval.items.items import Item, Items, check_unique
from likeness.eval.items.labels import LabelPattern
from likeness.eval.items.listing import is_plain_folder
from likeness.eval.items.remote import is_url, refuse_missing_files
from likeness.eval.items.suffixes import suffix_of, suffixes_of
from likeness.eval.reports.colours import to_rgb
from likeness.eval.types import item_id, nfc
from likeness.toolkit.data import shards

_MAX_CHANNELS = 32  # of a recording that is handed in as an array
_SUBTYPES = {"float32": "FLOAT", "int16": "PCM_16", "int32": "PCM_32"}


@contextmanager
def items_of(
    inputs: Any,
    *,
    modality: str,
    rate_hz: float | None = None,
    root: str | Path | None = None,
    columns: str | Mapping[str, str] = "",
    label: str = "",
) -> Iterator[Sequence[Item]]:
    """Give the inputs as items, for as long as the context lasts.

    Arrays and open files are written to a temporary folder, without loss, so that they are read
    with the same checks as everything else. The folder is removed at the end.

    Args:
        inputs: one of
            a path: a file of the modality, a folder that is searched for such files, a list file, a
            .csv, .tsv or .parquet file whose columns are known by their names, a Kaldi folder an
            .rttm file or tar shards (see `likeness.eval.items.listing.list_items`);
            a table with such columns, as of pandas or polars;
            an `Item`;
            an array, a tensor or a PIL image: a recording (samples,) or (samples, channels), or an
            image (H, W), (H, W, 3) or (3, H, W) of uint8;
            an array and its sampling rate as a pair, as soundfile and torchaudio give it;
            an open binary file, or the bytes of a file;
            a sequence of any of these but tables, lists and folders;
            a mapping from ids to files, arrays or open files.
        modality: "speaker", "face" or "image"; or "embedding", of a head, whose inputs are the rows
            of an embeddings file.
        rate_hz: sampling rate of recordings that are arrays.
        root: folder that relative paths of lists, tables and sequences start from. By default a
            list's and a file's own folder, and the current folder for what is in memory.
        columns: which column of a table is which, where its name does not say: "path=clip".
        label: a pattern of paths that has the labels, such as "{label}_*.wav".

    Yields:
        The items, each with an id of its own: the id that was given, else the path below the
        folder, else the path as it was written, else the number of the input, from 0.

    Raises:
        LikenessError: a path does not exist; all are counted. Of a list file or a table in a file
            some may be missing; reading them will say so. The inputs are of another kind, none are
            there, or ids are repeated.
    """
    if modality == "embedding":
        refuse_unused("an embeddings file", columns=columns, label=label, root=root)
        yield _rows_of(inputs)
        return
    is_path, start = isinstance(inputs, str | os.PathLike), Path(root or "")
    check_root(root, *([inputs] if is_path else []), label=label)
    with TemporaryDirectory() as folder:
        maker = _Maker(modality, suffixes_of(modality), Path(folder), rate_hz, start)
        items: Sequence[Item]
        if is_path:
            items = _of_path(inputs, modality, columns=columns, label=label, root=root)
        elif hasattr(inputs, "columns") and hasattr(inputs, "__getitem__"):
            items = read_items(inputs, start, columns=parse_columns(columns))
        else:
            refuse_unused("inputs that are no table", columns=columns)
            items = maker.in_memory(inputs)
            if not maker.num_paths:
                refuse_unused("inputs that are no paths", label=label, root=root)
        if not items:
            raise LikenessError("there is nothing to embed; give at least one file or array")
        if label and not is_path:
            items = LabelPattern(label).relabelled(Items.of(items), start, "the inputs")
        if not isinstance(inputs, Mapping):  # the ids of a mapping are its keys
            check_unique(items, "inputs")
        paths = dict.fromkeys(item.path for item in items)
        if not all(map(Path.is_file, paths)):
            refuse_missing_files(paths, allow_some=is_path)
        yield items


def check_root(root: str | Path | None, *data: str | os.PathLike[str], label: str = "") -> None:
    """Refuse a root that is no folder, or that nothing starts from.

    Args:
        root: The folder that relative paths start from.
        data: What it is given beside; none for what is in memory.
        label: A pattern of labels, which matches the paths below the root.

    Raises:
        LikenessError: It is such a root.
    """
    if not root:
        return
    if not is_url(root) and not Path(root).is_dir():
        raise LikenessError(f"root {str(root)!r} is no folder; correct it")
    if data and all(
        is_plain_folder(Path(path), label) or Path(path).suffix in (".tar", ".rec") for path in data
    ):
        name = f"{'the folder ' * Path(data[0]).is_dir()}{os.fspath(data[0])!r}"
        raise LikenessError(f"root: the files of {name} need none; leave it out")


def parse_listing(
    *data: str | Path,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
) -> dict[str, str]:
    """Return the options of a listing that were given, as text by name.

    Args:
        data: What is listed; it is only looked at for whether it is a folder.
        columns: As in `items_of`.
        label: As in `items_of`.
        root: As in `items_of`.

    Raises:
        LikenessError: Columns or label are malformed, or as `check_root`.
    """
    check_root(root, *data, label=label)
    stated = ",".join(f"{role}={name}" for role, name in parse_columns(columns).items())
    pattern = LabelPattern(label).text if label else ""
    named = {"columns": stated, "label": pattern, "root": str(root or "")}
    return {name: text for name, text in named.items() if text}


def _rows_of(inputs: Any) -> Sequence[Item]:
    """The rows of an embeddings file, which a head takes."""
    if not isinstance(inputs, str | os.PathLike):
        raise LikenessError(
            f"a head takes the path of an embeddings file, not a {type(inputs).__name__}; to embed "
            "recordings or images, join it with its model: likeness.join(MODEL, HEAD, RUN)"
        )
    from likeness.modalities.embedding.rows import every

    return every(Path(inputs))


def _of_path(path: str | os.PathLike[str], modality: str, **listing: Any) -> Sequence[Item]:
    """The items of a path, which are listed by these options if it is no file of the modality."""
    text, path, suffixes = str(path), Path(path), suffixes_of(modality)
    suffix = path.suffix.lower()
    if suffix in suffixes and (is_url(text) or path.is_file()):
        refuse_unused(f"the file {text!r}", **listing)
        return [Item(item_id(text), path)]
    if not text or not path.exists():
        raise LikenessError(f"{text!r}: there is no such file or folder; correct the path")
    try:
        return shards.or_files(path, suffixes=suffixes, missing="leave", **listing)
    except ValueError as error:
        lists = (*TABLES, ".rttm", ".tar", ".list", *suffixes)
        if path.is_dir() or suffix in lists:
            raise
        raise LikenessError(
            f"{error}. It was read as a list of files, since a {modality} model reads files that "
            f"end in {', '.join(suffixes)}"
        ) from None


@dataclass
class _Maker:
    """Turns inputs into items; files that it has to write go into `folder`."""

    modality: str
    suffixes: Sequence[str]
    folder: Path
    rate_hz: float | None
    root: Path
    num_written: int = 0
    num_paths: int = 0

    def in_memory(self, inputs: Any) -> list[Item]:
        """Make an item of each value of a mapping or a sequence, or of a single value."""
        if isinstance(inputs, Mapping):
            return [self.single(value, "", item_id(str(key))) for key, value in inputs.items()]
        values = [inputs] if _is_single(inputs) else inputs
        return [self.single(value, str(number)) for number, value in enumerate(values)]

    def single(self, value: Any, number: str, key: str | None = None) -> Item:
        """Make one item.

        Args:
            value: a path, an Item, an array or an open file.
            number: the id of a value that has no name of its own.
            key: the id that the caller gave it, or None.
        """
        if isinstance(value, Item):
            label = value.label and nfc(value.label)
            return value._replace(id=item_id(value.id) if key is None else key, label=label)
        number = number if key is None else key
        if isinstance(value, str | os.PathLike):
            self.num_paths += 1
            path = self.root / value
            if not path.is_file():
                path = Path(*listed_paths(self.root, [os.fspath(value)]))
            return Item(item_id(str(value)) if key is None else key, path)
        if isinstance(value, bytes) or hasattr(value, "read"):
            return Item(number, self._write_bytes(value))
        if self.modality != "speaker" and _is_array(value):
            return Item(number, self._write_image(value))
        if self.modality == "speaker" and (_is_array(value) or _is_recording(value)):
            wave, rate_hz = (value, self.rate_hz) if _is_array(value) else value
            return Item(number, self._write_wave(wave, rate_hz))
        raise LikenessError(
            f"input {number} of a {self.modality} model is of type {type(value).__name__}; give a "
            "path, a table with a column of paths, an Item, an array or an open file"
        )

    def _new_file(self, suffix: str) -> Path:
        self.num_written += 1
        return self.folder / f"{self.num_written:06d}{suffix}"

    def _write_bytes(self, file: Any) -> Path:
        path = self._new_file("")
        with path.open("wb") as copy:
            shutil.copyfileobj(io.BytesIO(file) if isinstance(file, bytes) else file, copy)
        suffix = Path(str(getattr(file, "name", ""))).suffix.lower()
        if suffix not in self.suffixes:
            with path.open("rb") as start:
                suffix = suffix_of(start.read(64)) or self.suffixes[0]
        return path.rename(path.with_suffix(suffix))

    def _write_wave(self, array: Any, rate_hz: float | None) -> Path:
        import soundfile

        if not isinstance(rate_hz, Real) or not (0 < rate_hz < 2**31 and rate_hz % 1 == 0):
            raise LikenessError(f"rate_hz {rate_hz!r}: give the rate of the array, such as 16000")
        wave = _as_numpy(array)
        if wave.ndim == 2 and wave.shape[0] < wave.shape[1]:
            wave = wave.T  # torchaudio gives (channels, samples)
        has_shape = wave.ndim == 1 or (wave.ndim == 2 and wave.shape[1] <= _MAX_CHANNELS)
        if np.issubdtype(wave.dtype, np.floating):
            wave = wave.astype(np.float32)
        if wave.dtype.name not in _SUBTYPES or not has_shape:
            raise LikenessError(
                "a recording must hold floats, int16 or int32 in the shape (samples,) or (samples, "
                f"channels), but it holds {wave.dtype} in {wave.shape}; several are given as a list"
            )
        path = self._new_file(".wav")
        wave = wave.astype(wave.dtype.newbyteorder("="))  # soundfile takes the bytes as they are
        soundfile.write(path, wave, int(rate_hz), subtype=_SUBTYPES[wave.dtype.name])
        return path

    def _write_image(self, array: Any) -> Path:
        from PIL import Image

        pixels = _as_numpy(array)
        if pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.shape[2] != 3:
            pixels = np.moveaxis(pixels, 0, 2)
        is_image = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)
        if pixels.dtype != np.uint8 or not is_image or not pixels.size:
            raise LikenessError(
                f"image {pixels.dtype} {pixels.shape}: give uint8 (H, W), (H, W, 3) or (3, H, W)"
            )
        path = self._new_file(".png")
        Image.fromarray(np.ascontiguousarray(pixels)).save(path, compress_level=1)
        return path


def _is_array(value: Any) -> bool:
    """Whether numpy can take the value as an array: an array, a tensor or a PIL image."""
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _is_texts(value: Any) -> bool:
    """Whether the value is an array or a column of texts or paths, not of numbers."""
    dtype = getattr(value, "dtype", None)
    is_text = str(dtype) in ("string", "str") or getattr(dtype, "kind", "") in ("U", "O")
    return _is_array(value) and is_text


def _is_single(value: Any) -> bool:
    """Whether the value is one input, and no sequence of inputs."""
    is_file = isinstance(value, Item | bytes) or hasattr(value, "read")
    is_array = (_is_array(value) and not _is_texts(value)) or _is_recording(value)
    return is_file or is_array or not isinstance(value, Iterable)


def _is_recording(value: Any) -> bool:
    """Whether the value is an array and its sampling rate."""
    is_pair = isinstance(value, tuple) and len(value) == 2
    return is_pair and _is_array(value[0]) and isinstance(value[1], Real)


def _as_numpy(array: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        if str(array.dtype) == "torch.bfloat16":  # numpy has no such type
            array = array.float()
    if hasattr(array, "convert") and hasattr(array, "mode"):
        array = to_rgb(array)
    return np.asarray(array)
