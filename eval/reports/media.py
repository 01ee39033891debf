"""Images and sound for reports: untrusted files are decoded within bounds and written anew, small,
as data: URIs. What cannot be shown is counted and is never an error.

Nothing of the original bytes reaches the page. Images become JPEG thumbnails without metadata;
recordings become their first 10 seconds in mono, as 16-bit FLAC, with waveform and spectrogram.
Pillow, soundfile and Jinja2 are imported only where a file is shown, since others use the constants
of this module.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, install_line
from likeness.eval.formats.files import File, as_stored
from likeness.eval.items import containers
from likeness.eval.items.items import Item
from likeness.eval.items.listing import is_kaldi_folder, list_items
from likeness.eval.items.suffixes import AV_SOUNDS, IMAGES, SOUNDS, suffix_of
from likeness.eval.reports.colours import to_rgb
from likeness.eval.types import Floats, name_first

if TYPE_CHECKING:
    from markupsafe import Markup

# Of an image, known before it is decoded: 67 megapixels, 192 MiB decoded. Larger ones are scans or
# attacks.
MAX_PIXELS = 2**26
MAX_JPEG_PIXELS = 200_000_000  # which is decoded at half of its edges
MAX_BYTES = 2**28  # of an image file
MAX_VALUES = 2**24  # samples x channels decoded of a recording
MAX_PAGE = 7 * 2**20  # bytes of all media of a page: 7 MiB, so that it can be mailed
SIDE = 256  # pixels of a thumbnail's longer side
SECONDS = 10.0
_HEARD = SOUNDS + AV_SOUNDS
RATE_HZ = 16_000  # higher rates are lowered to this
_COLUMNS, _WAVE_ROWS, _BAND_ROWS = 480, 48, 96  # pixels of a recording's picture
# Nothing else is tried, whatever the file says it is: Pillow's reader of EPS starts a program.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF", "PPM")


def formats_of(file: BinaryIO) -> tuple[str, ...]:
    """The formats that an image may have: HEIF too, of iPhones, where it begins as such a file.

    Raises:
        LikenessError: It is HEIC, and pillow-heif is not installed.
    """
    start = file.read(12)
    file.seek(0)
    if start[4:8] != b"ftyp":
        return FORMATS
    try:
        import_module("pillow_heif").register_heif_opener(thumbnails=False)
    except ImportError:
        line = install_line("heic")
        raise LikenessError(f"HEIC needs pillow-heif; run `{line}`, or use .jpg") from None
    return (*FORMATS, "HEIF")


Pixels = NDArray[np.uint8]  # (H, W) grey or (H, W, 3) RGB
Source = Path | Item | Pixels | None


class Media:
    """The images and recordings behind ids, shown within one budget of bytes.

    Args:
        find: id -> its file, the item, its pixels, or None.
        max_bytes: of all that is shown, as base64.
        folder: where the files are looked for, for `note`; None says nothing of absent ones.
    """

    def __init__(
        self,
        find: Callable[[str], Source],
        *,
        max_bytes: int = MAX_PAGE,
        folder: Path | None = None,
    ) -> None:
        self._find, self._left, self._folder = find, max_bytes, folder
        self._absent: set[str] = set()
        self._bad: dict[str, str] = {}
        self._over: set[str] = set()
        self._kind: dict[str, str] = {}  # of what is on the page already

    def show(self, id: str) -> Markup:
        """The image, or the player and the picture of a recording. What is shown again is copied by
        the page's script, so that it takes its bytes once.

        Returns:
            HTML. It is empty where the item has no file, or one that cannot be shown; `note` then
            says why.
        """
        from likeness.eval.reports.page import EMPTY, block

        if id in self._kind:
            return block("again", name=id, kind=self._kind[id])
        try:
            source = self._find(id)
            if source is None:
                self._absent.add(id)
                return EMPTY
            # Nothing is decoded that has no room.
            kind, values = _contents(source) if self._left > 0 else ("", {})
        except (OSError, ValueError) as error:
            self._bad[id] = str(error)
            return EMPTY
        self._left -= sum(len(text) for text in values.values() if isinstance(text, str))
        if not kind or self._left < 0:
            self._over.add(id)
            return EMPTY
        self._kind[id] = kind
        return block(kind, name=id, **values)

    def note(self) -> str:
        """What is missing and why, as text; "" if nothing is."""
        sentences = []
        if self._folder and self._absent and not (self._kind or self._bad or self._over):
            sentences.append(f"{self._folder} has no file of {name_first(sorted(self._absent))}.")
        if self._bad:
            first = next(iter(self._bad))
            sentences.append(
                f"{len(self._bad)} files could not be shown ({name_first(self._bad)}; the first: "
                f"{self._bad[first]})."
            )
        if self._over:
            sentences.append(
                f"{len(self._over)} more were left out, as a page holds at most {MAX_PAGE >> 20} "
                "MiB of images and sound."
            )
        return " ".join(sentences)


def media_of_folder(folder: Path) -> Media:
    """The media in a folder, where an id is a path below it whose suffix may be missing.

    A crop of `likeness align` stands for its photograph. Ids that are absolute or hold .. are not
    there.
    """

    def find(id: str) -> Path | None:
        if not id or os.path.isabs(id) or ".." in Path(id).parts or "\0" in id:
            return None
        crop = re.sub(r"\.\w+(#\d+)?$", r"\1.png", id)
        for name in (*(f"{id}{suffix}" for suffix in ("", *IMAGES, *_HEARD)), crop):
            path = folder / as_stored(folder, name)
            if path.suffix.lower() in (*IMAGES, *_HEARD) and path.is_file():
                return path
        return None

    return Media(find, folder=folder)


def _contents(source: Path | Item | Pixels) -> tuple[str, dict[str, Any]]:
    """The block of templates/blocks.html that shows a source, and its values."""
    if not isinstance(source, np.ndarray) and source.suffix.lower() in _HEARD:
        heard = read_sound(source)
        shown = {"data": _as_text(flac(heard)), "drawing": _as_text(drawing(heard))}
        return "sound", {**shown, "seconds": heard.seconds}
    content = thumbnail(source.path if isinstance(source, Item) else source)
    return "image", {"data": _as_text(content), "tiny": content.startswith(b"\x89PNG")}


def _as_text(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def thumbnail(source: Path | Pixels) -> bytes:
    """A JPEG of at most 256 pixels a side, upright, without metadata.

    Images up to 64 pixels a side become a PNG, which keeps their few pixels as they are.

    Raises:
        LikenessError: it is no image of a known format, has over 67 megapixels or 256 MiB, or is
            truncated or damaged.
    """
    from PIL import Image

    if isinstance(source, np.ndarray):
        return _encoded(Image.fromarray(source))
    if source.stat().st_size > MAX_BYTES or not source.is_file():
        raise LikenessError(f"{source.name}: no file, or over {MAX_BYTES} bytes")
    try:
        with source.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow warns of is refused here
            with Image.open(file, formats=formats_of(file)) as image:
                most = MAX_JPEG_PIXELS if image.format == "JPEG" else MAX_PIXELS
                if not 1 <= image.width * image.height <= most:
                    raise LikenessError(f"{image.width} x {image.height} pixels, over {most}")
                # A large JPEG is decoded at an eighth of its size.
                image.draft("RGB", (2 * SIDE, 2 * SIDE))
                return _encoded(image)
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, struct.error, EOFError, IndexError and more
        # for damaged files.
        raise LikenessError(f"{source.name}: {error or type(error).__name__}") from error


def _encoded(image: Any) -> bytes:
    is_grey = image.mode in ("1", "L") or image.mode.startswith("I")
    image = to_rgb(image).convert("L" if is_grey else "RGB")
    image.info = {}  # comments and profiles, which Pillow would write again
    file = io.BytesIO()
    if max(image.size) <= 64:
        image.save(file, "PNG", optimize=True)
    else:
        image.thumbnail((SIDE, SIDE))
        image.save(file, "JPEG", quality=82, optimize=True)
    return file.getvalue()


class Heard(NamedTuple):
    """The beginning of a recording.

    Attributes:
        wave: (N,) samples in [-1, 1].
        rate_hz: samples a second.
        seconds: how long the whole recording is, or the whole stretch of it.
    """

    wave: Floats
    rate_hz: int
    seconds: float


def read_sound(source: Path | Item) -> Heard:
    """The first 10 seconds of a recording, or of a stretch of it, in mono, at most 16 kHz.

    The channels are averaged, unless one is named, and NaN becomes silence.

    Raises:
        LikenessError: the file cannot be decoded, its rate is outside 1 to 768 kHz, it or its
            stretch is empty, or it has so many channels that 10 seconds are over 16.8 million
            values.
    """
    import soundfile

    item = source if isinstance(source, Item) else Item("", source)
    path, (start, end), channel = item.path, item.stretch or (0.0, np.inf), item.channel
    if not path.is_file():
        raise LikenessError(f"{path.name}: no file")
    try:
        with path.open("rb") as bare:
            kind = suffix_of(bare.read(64)) or path.suffix.lower()
        if kind in AV_SOUNDS:
            raw, rate, seconds = _read_av(path, kind, start, end)
        else:
            with soundfile.SoundFile(path) as file:
                rate, frames = file.samplerate, file.frames
                _check_size(rate, file.channels)
                # Times may be beyond all numbers of samples: they are bounded before rounding.
                first = round(min(max(start * rate, 0), frames))
                last = round(min(end * rate, frames))
                if first:
                    file.seek(first)
                # Some formats do not say how long they are: the whole of a file is read to its end.
                most = int(SECONDS * rate)
                num = most if last == frames else min(most, last - first)
                raw = file.read(max(num, 0), dtype="float32", always_2d=True)
            seconds = (last - first) / rate
        channels = raw.shape[1]
        if channel is not None:  # 0 is the only channel of a recording
            one = channel - 1 if channel or channels > 1 else 0
            raw = raw[:, one : one + 1] if one >= 0 else raw[:, :0]
        if not raw.size:
            raise LikenessError("0 samples, or no such channel")
        seconds = max(seconds, len(raw) / rate)
        mono = raw.mean(axis=1, dtype=np.float64)
        wave: Floats = np.nan_to_num(mono, nan=0.0, posinf=1.0, neginf=-1.0)
        if rate > RATE_HZ:
            from scipy.signal import resample_poly

            # Of odd rates too, within .1 %: the filter's length grows with the ratio's terms.
            ratio = Fraction(RATE_HZ, rate).limit_denominator(1_000)
            wave, rate = resample_poly(wave, ratio.numerator, ratio.denominator), RATE_HZ
    except (RuntimeError, ValueError, TypeError) as error:  # soundfile's errors are RuntimeErrors
        raise LikenessError(f"{path.name}: {error}") from error
    return Heard(wave.clip(-1, 1), rate, seconds)


def _check_size(rate: int, channels: int) -> None:
    """Refuse rates outside 1 to 768 kHz, and channels that make 10 seconds large."""
    if not 1_000 <= rate <= 768_000 or SECONDS * rate * channels > MAX_VALUES:
        raise LikenessError(f"{channels} channels at {rate} Hz")


def _read_av(path: Path, kind: str, start: float, end: float) -> tuple[Any, int, float]:
    """(samples, channels) of the beginning of a stretch, the rate, and its length in seconds, of a
    file that PyAV reads.
    """
    parts, num = [], 0
    with containers.opened(path, kind) as (container, stream):
        rate = int(stream.rate)
        _check_size(rate, stream.channels)
        seconds = min(end, (container.duration or 0) / containers.SECOND) - start
        if 0 < start <= seconds + start:
            container.seek(round(start * containers.SECOND))
        resampler = import_module("av").AudioResampler
        planar = resampler(format="fltp", layout=stream.layout, rate=rate)
        for frame in container.decode(stream):
            if frame.time < start - 1:  # it cannot seek
                continue
            parts += [
                (part.time + np.arange(part.samples) / rate, part.to_ndarray().T)
                for part in planar.resample(frame)
            ]
            num += frame.samples
            # Times may stand still.
            if frame.time >= min(end, start + SECONDS) or num > 2 * SECONDS * rate:
                break
    if not parts:
        raise LikenessError("0 samples")
    times, raw = map(np.concatenate, zip(*parts, strict=True))
    heard = raw[(times >= start) & (times < min(end, start + SECONDS))]
    return heard[: int(SECONDS * rate)], rate, seconds


def flac(heard: Heard) -> bytes:
    """The sound as 16-bit FLAC."""
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, heard.wave, heard.rate_hz, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def drawing(heard: Heard) -> bytes:
    """The waveform above the spectrogram, from left to right in time, as a grey JPEG.

    The waveform is the lowest and the highest sample of each column; the spectrogram is the power
    in dB over 60 dB below its maximum, low frequencies at the bottom, dark where it is loud.
    """
    from PIL import Image
    from scipy.signal import stft

    wave = np.pad(heard.wave, (0, max(0, _COLUMNS - heard.wave.size)))
    begin = np.linspace(0, wave.size, _COLUMNS, endpoint=False).astype(np.int64)
    height = np.arange(_WAVE_ROWS)[:, None]
    scale = max(float(np.abs(wave).max()), 1e-9)
    top, bottom = (
        (0.5 - 0.48 * edge.reduceat(wave, begin) / scale) * (_WAVE_ROWS - 1)
        for edge in (np.maximum, np.minimum)
    )
    inside = (height >= np.floor(top)) & (height <= np.ceil(bottom))
    window = min(int(0.025 * heard.rate_hz), wave.size)
    _, _, spectrum = stft(wave, heard.rate_hz, nperseg=window, noverlap=window - window // 3)
    decibel = 20 * np.log10(np.abs(spectrum) + 1e-10)
    loud = np.clip((decibel - decibel.max() + 60) / 60, 0, 1)[::-1]
    levels = Image.fromarray((255 * (1 - loud)).astype(np.uint8))
    picture = Image.new("L", (_COLUMNS, _WAVE_ROWS + _BAND_ROWS))
    picture.paste(Image.fromarray(np.where(inside, 70, 255).astype(np.uint8)), (0, 0))
    picture.paste(levels.resize((_COLUMNS, _BAND_ROWS), Image.Resampling.BOX), (0, _WAVE_ROWS))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=70, optimize=True)
    return file.getvalue()


def media_of(source: File | Mapping[str, Path] | None) -> Media:
    """The media in a folder, of a list or of a table.

    Args:
        source: a folder, as `media_of_folder` takes it; or a list, a table, a Kaldi folder or an
            .rttm file (see `likeness.eval.items.listing`), whose items may be stretches of
            recordings; a mapping from ids to files; or None for no media.

    Raises:
        LikenessError: there is no such file or folder. The list or table cannot be understood.
    """
    if source is None or isinstance(source, Mapping):
        return Media((source or {}).get)
    source = Path(source)
    if source.is_dir() and not is_kaldi_folder(source):
        return media_of_folder(source)
    return media_of_items(list_items(source, suffixes=[*_HEARD, *IMAGES], missing="leave"))


def media_of_items(items: Sequence[Item]) -> Media:
    """The media of items by their ids. Those inside tar shards have none.

    Example:
        >>> from likeness.eval.items.items import Item
        >>> item = Item("ann/1", Path("ann.wav"), "ann", stretch=(1.0, 2.5))
        >>> media_of_items([item]).show("ann/2")
        Markup('')
    """
    rows = {item.id: row for row, item in enumerate(items)}

    def find(id: str) -> Source:
        item = items[rows[id]] if id in rows else None
        return None if item is None or item.span is not None else item

    return Media(find)
