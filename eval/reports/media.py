"""Images and sound for reports: untrusted files decoded within bounds and written anew, small, as
data: URIs. What cannot be shown is counted, never an error.

Nothing of the original bytes reaches the page: images become JPEG thumbnails without metadata,
recordings the first 10 seconds in mono as 16-bit FLAC. Pillow and soundfile are imported only where
a file is shown.
"""

from __future__ import annotations

import io
import os
import warnings
from base64 import b64encode
from collections.abc import Callable
from fractions import Fraction
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import as_stored, text_lines
from eval.types import Floats, name_first, nfc

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".pgm", ".ppm", ".pbm")
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".sph")
# of an image, known before it is decoded: 67 megapixels, 192 MiB decoded; larger ones are scans or
# attacks
MAX_PIXELS = 2**26
MAX_BYTES = 2**28  # of an image file
MAX_VALUES = 2**24  # samples x channels decoded of a recording
MAX_PAGE = 2**25  # bytes of all media of a page: 32 MiB
SIDE = 160  # pixels of a thumbnail's longer side
SECONDS = 10.0
RATE_HZ = 16_000  # higher rates are lowered to this
FORMATS = (
    "JPEG",
    "PNG",
    "BMP",
    "WEBP",
    "GIF",
    "TIFF",
    "PPM",
)  # nothing else is tried, whatever the file says it is: Pillow's reader of EPS starts a program

Pixels = NDArray[np.uint8]  # (H, W) grey or (H, W, 3) RGB
Found = Path | Pixels | None


class Media:
    """The images and recordings behind ids, shown within one budget of bytes. find: id -> its file,
    its pixels, or None.
    """

    def __init__(self, find: Callable[[str], Found], *, max_bytes: int = MAX_PAGE) -> None:
        self._find, self._left = find, max_bytes
        self._bad: dict[str, str] = {}
        self._over: set[str] = set()

    def show(self, id: str) -> str:
        """<img> or <audio> of the item; "" if it has no file of a known kind, or it cannot be
        shown: `note` then says why.
        """
        try:
            found = self._find(id)
            sound = isinstance(found, Path) and found.suffix.lower() in SOUNDS
            if found is None or not (
                sound or isinstance(found, np.ndarray) or found.suffix.lower() in IMAGES
            ):
                return ""
            if self._left <= 0:
                self._over.add(id)
                return ""
            held = clip(found) if sound and isinstance(found, Path) else thumbnail(found)
        except (OSError, ValueError) as error:
            self._bad[id] = str(error)
            return ""
        text = b64encode(held).decode("ascii")
        self._left -= len(text)
        if self._left < 0:
            self._over.add(id)
            return ""
        name = escape(id)
        if sound:
            return (
                f'<audio controls preload="none" aria-label="{name}" '
                f'src="data:audio/flac;base64,{text}"></audio>'
            )
        tiny = ' class="tiny"' if held[:8] == _PNG else ""
        return (
            f'<img alt="{name}"{tiny} src="data:image/{"png" if tiny else "jpeg"};base64,{text}">'
        )

    def note(self) -> str:
        """What is missing and why, as text; "" if nothing is."""
        said = []
        if self._bad:
            first = next(iter(self._bad))
            said.append(
                f"{len(self._bad)} files could not be shown ({name_first(self._bad)}; the first: "
                f"{self._bad[first]})."
            )
        if self._over:
            said.append(
                f"{len(self._over)} more were left out, as a page holds at most {MAX_PAGE >> 20} "
                "MiB of images and sound."
            )
        return " ".join(said)


def media_of(source: Path) -> Media:
    """Media in a folder, where an id is a path below it (its suffix may be missing), or of a LIST:
    lines `path` or `id path [label]`, from the list's folder.

    Ids that are absolute or hold .. find nothing in a folder. ValueError for a LIST with other
    lines (all counted, the first named).
    """
    if source.is_dir():
        return Media(_Below(source))
    paths: dict[str, Path] = {}
    wrong = []
    for number, line in text_lines(source):
        separator = "\t" if "\t" in line else "," if "," in line else None
        fields = [field.strip() for field in line.split(separator)]
        if not all(fields) or len(fields) > 3:
            wrong.append(f"line {number}")
            continue
        paths[nfc(fields[0])] = source.parent / fields[min(1, len(fields) - 1)]
    if wrong:
        raise ValueError(
            f"{source}: {len(wrong)} lines are neither `path` nor `id path [label]` "
            f"({name_first(wrong)}); --media takes a folder or such a list"
        )
    return Media(paths.get)


class _Below:
    """id -> file below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __call__(self, id: str) -> Path | None:
        if not id or os.path.isabs(id) or ".." in Path(id).parts or "\0" in id:
            return None
        for suffix in ("", *IMAGES, *SOUNDS):
            path = as_stored(self._root, f"{id}{suffix}")
            if path.suffix.lower() in (*IMAGES, *SOUNDS) and path.is_file():
                return path
        return None


_PNG = b"\x89PNG\r\n\x1a\n"


def thumbnail(source: Path | Pixels) -> bytes:
    """A JPEG of at most 160 pixels a side, upright, without metadata; images up to 64 pixels a side
    become a PNG, which keeps their few pixels as they are.

    ValueError: no image of a known format, over 67 megapixels or 256 MiB, truncated or damaged; an
    array that is not uint8 (H, W) or (H, W, 3).
    """
    from PIL import Image, ImageOps

    if isinstance(source, np.ndarray):
        if (
            source.dtype != np.uint8
            or source.shape[2:] not in ((), (3,))
            or not 0 < source.size <= 3 * MAX_PIXELS
        ):
            raise ValueError(
                f"image: {source.dtype} of shape {source.shape}; give uint8 pixels (H, W) or (H, "
                "W, 3)"
            )
        return _encoded(Image.fromarray(source))
    if source.stat().st_size > MAX_BYTES or not source.is_file():
        raise ValueError(f"{source.name}: no file, or over {MAX_BYTES} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow warns of is refused here
            with Image.open(source, formats=FORMATS) as image:
                if not 1 <= image.width * image.height <= MAX_PIXELS:
                    raise ValueError(
                        f"{image.width} x {image.height} pixels, over {MAX_PIXELS} in all"
                    )
                image.draft(
                    "RGB", (2 * SIDE, 2 * SIDE)
                )  # a large JPEG is decoded at an eighth of its size
                return _encoded(ImageOps.exif_transpose(image))
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, struct.error, EOFError, IndexError and more
        # for damaged files
        raise ValueError(f"{source.name}: {error or type(error).__name__}") from error


def _encoded(image: Any) -> bytes:
    from PIL import Image

    if image.mode.startswith(
        ("I", "F")
    ):  # 16 bits and more: its own range, as convert would clip at 255
        step = max(
            1, max(image.size) // (4 * SIDE)
        )  # every so many pixels are enough for a thumbnail
        values = np.asarray(image)[::step, ::step].astype(np.float64)
        low, high = float(values.min()), float(values.max())
        image = Image.fromarray(((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8))
    image = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
    image.info = {}  # comments and profiles, which Pillow would write again
    held = io.BytesIO()
    if max(image.size) <= 64:
        image.save(held, "PNG", optimize=True)
    else:
        image.thumbnail((SIDE, SIDE))
        image.save(held, "JPEG", quality=82, optimize=True)
    return held.getvalue()


def clip(path: Path) -> bytes:
    """The first 10 seconds in mono (channels averaged), at most 16 kHz, as 16-bit FLAC.

    NaN is silence.

    ValueError: not decodable, empty, a rate outside 1 to 768 kHz, or so many channels that 10
    seconds are over 16.8 million values.
    """
    import soundfile

    if not path.is_file():
        raise ValueError(f"{path.name}: no file")
    try:
        with soundfile.SoundFile(path) as file:
            rate, channels = file.samplerate, file.channels
            if not 1_000 <= rate <= 768_000 or SECONDS * rate * channels > MAX_VALUES:
                raise ValueError(f"{channels} channels at {rate} Hz")
            raw = file.read(int(SECONDS * rate), dtype="float32", always_2d=True)
        if not raw.size:
            raise ValueError("0 samples")
        wave: Floats = np.nan_to_num(
            raw.mean(axis=1, dtype=np.float64), nan=0.0, posinf=1.0, neginf=-1.0
        )
        if rate > RATE_HZ:
            from scipy.signal import resample_poly

            ratio = Fraction(RATE_HZ, rate).limit_denominator(
                1_000
            )  # of odd rates too, within .1 %: the filter's length grows with its terms
            wave, rate = resample_poly(wave, ratio.numerator, ratio.denominator), RATE_HZ
        held = io.BytesIO()
        soundfile.write(held, wave.clip(-1, 1), rate, format="FLAC", subtype="PCM_16")
    except (RuntimeError, ValueError, TypeError) as error:  # soundfile's errors are RuntimeErrors
        raise ValueError(f"{path.name}: {error}") from error
    return held.getvalue()
