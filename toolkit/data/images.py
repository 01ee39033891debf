"""Image files to 8-bit RGB and back, for every modality of images.

What cannot be used is refused with its reason. Pillow reads every header, so that sizes are known
before anything is allocated. Plain JPEGs, which are whole, upright and RGB or grey, are decoded by
OpenCV in half of Pillow's time, to the same pixels, where OpenCV is installed. Pillow decodes the
rest, because it refuses truncated data, where OpenCV fills the missing part with grey and goes on.

The modalities decide about sizes (modalities/face/images.py, modalities/image/images.py). The
front-end decides about scaling and the order of colours (toolkit/data/pixels.py).
"""

import contextlib
import hashlib
import io
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, BinaryIO, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from likeness.eval.errors import LikenessError, check_choice
from likeness.eval.items.items import Item
from likeness.eval.reports.colours import ORIENTATION, is_srgb, to_rgb
from likeness.eval.reports.media import FORMATS, MAX_BYTES, MAX_JPEG_PIXELS, MAX_PIXELS, formats_of
from likeness.toolkit.data import reading

Pixels = NDArray[np.uint8]  # (H, W, 3) RGB; where a function says so also (H, W), grey

_FIRST_BYTES = 2**16  # read first; most aligned crops are smaller
_END_OF_JPEG = b"\xff\xd9"
_AFTER_JPEG = 4096  # bytes behind the end of a JPEG, which some cameras write
_SRGB_CODES = (b"\1\x0d", b"\1\1")  # primaries and transfer by H.273, of sRGB and its video form
_TURNS = range(2, 9)  # values of this tag that turn or mirror an image; those from 5 swap its edges


class BadImage(reading.Unreadable):
    """One image that cannot be used.

    The message names the file, what is wrong, the value and what is allowed. Callers count such
    files and skip or refuse them.
    """


class CutImage(BadImage):
    """A file ends before its image does."""


def file_bytes(item: Item) -> bytes:
    """Reads the bytes of an image as they lie on disk or in a tar shard.

    Args:
        item: The image.

    Raises:
        BadImage: They cannot be read, or there are more than 256 MiB.
    """
    try:
        with item.open() as file:
            # A single read of everything that is allowed would first allocate as much.
            content = file.read(_FIRST_BYTES)
            if len(content) == _FIRST_BYTES:
                content += file.read(MAX_BYTES + 1 - _FIRST_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise BadImage(f"{item.name}: {reason}; check the list and its root folder") from error
    except ValueError as error:  # it names the item
        raise BadImage(str(error)) from error
    if len(content) > MAX_BYTES:
        raise BadImage(
            f"{item.name}: it has over {MAX_BYTES} bytes, but at most so many are read; "
            "shrink the image"
        )
    return content


def decode_bytes(content: bytes, name: str) -> Pixels:
    """Decodes an image file to RGB, upright as its EXIF orientation says.

    Grey, palettes and CMYK become RGB, colours with a profile (ICC) or another gamma become those
    of sRGB, and a transparent image is laid on middle grey, (128, 128, 128). 16 bits become 8: grey
    is rounded, and of colours the upper 8 bits stay. Floats, 32 bits and signed levels are refused,
    because their range is not known. Of a file of several images or pages, the first is read. It
    takes 4 bytes of memory for each pixel, twice that where EXIF turns the image or where it is
    transparent, and 3 for the result.

    Args:
        content: The bytes of the image file.
        name: What errors call the image.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        BadImage: The format is another one, the data are damaged or truncated, or there are more
            than 67 megapixels, which is seen before decoding. Of a JPEG there may be 200; above 67
            it is decoded at half of its edges.
        Empty: No pixel can be seen.
    """
    with open_image(io.BytesIO(content), name) as image:
        if image.width * image.height > MAX_PIXELS:
            image.draft(None, (-(-image.width // 2), -(-image.height // 2)))
        elif (pixels := _plain_jpeg(image, content)) is not None:
            return pixels
        if image.format == "PNG" and _png_codes(content) not in (b"", *_SRGB_CODES):
            raise BadImage(f"{name}: its colours (cICP) are not those of sRGB; convert it to sRGB")
        colours = to_rgb(image)
        if image.has_transparency_data and not image.convert("RGBA").getchannel("A").getbbox():
            reading.refuse_empty(name, reading.Lack("it is fully transparent"))
        return np.array(colours)


def _png_codes(content: bytes) -> bytes:
    """The primaries and transfer that a PNG states before its pixels (cICP); else nothing."""
    at = 8
    while (name := content[at + 4 : at + 8]) not in (b"IDAT", b""):
        if name == b"cICP":
            return content[at + 8 : at + 10]
        at += 12 + int.from_bytes(content[at : at + 4])
    return b""


@contextlib.contextmanager
def open_image(file: BinaryIO, name: str) -> Iterator[Image.Image]:
    """Opens an image file by Pillow, which reads its header, for as long as the context lasts.

    Args:
        file: The file, which stays open.
        name: What errors call the image.

    Raises:
        BadImage: It is no image that is read, or has over 67 megapixels, or 200 of a JPEG. What
            Pillow raises within the block, which are errors of many types, becomes this too.
    """
    try:
        formats = formats_of(file)
        Image.MAX_IMAGE_PIXELS = MAX_JPEG_PIXELS  # Pillow would warn of half as many
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # refused below
            image = Image.open(file, formats=formats)
        with image:
            most = MAX_JPEG_PIXELS if image.format == "JPEG" else MAX_PIXELS
            if not 1 <= image.width * image.height <= most:
                raise BadImage(
                    f"{name}: {image.height} x {image.width} pixels, but at most {most} in all are "
                    "read; shrink the image"
                )
            yield image
    except (BadImage, reading.Empty):
        raise
    except LikenessError as error:
        raise BadImage(f"{name}: {error}") from None
    except Exception as error:
        reason = str(error or type(error).__name__).rstrip(". ")
        if isinstance(error, UnidentifiedImageError):
            reason = f"in none of the formats {', '.join(FORMATS)}"
        raise BadImage(
            f"{name}: it cannot be decoded ({reason}); fetch or write the file again, or remove it"
        ) from error


def _is_turned(jpeg: Image.Image) -> bool:
    """Whether EXIF turns or mirrors a JPEG; a damaged block does not."""
    if not {"exif", "xmp"} & jpeg.info.keys():
        return False  # the usual case, without a search
    with contextlib.suppress(Exception):
        return jpeg.getexif().get(ORIENTATION, 1) in _TURNS
    return False


def _plain_jpeg(image: Image.Image, content: bytes) -> Pixels | None:
    """Decodes a plain JPEG by OpenCV; gives None for another image, or without OpenCV.

    OpenCV fills what is missing at the end of a file with grey. So only a file that ends as a JPEG
    has to end is plain; Pillow decides about the others.
    """
    if (
        image.format != "JPEG"
        or image.mode not in ("RGB", "L")
        or not content.endswith(_END_OF_JPEG)
        or _is_turned(image)
        or not is_srgb(image)
    ):
        return None
    try:
        import cv2
    except ImportError:
        return None
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        decoded: Any = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error:
        return None
    size = image.height, image.width, 3
    return None if decoded is None or decoded.shape != size else np.asarray(decoded, np.uint8)


def encode(pixels: Pixels, suffix: str = ".png", *, quality: int = 95) -> bytes:
    """Encodes an image as PNG, which is lossless, or as JPEG without chroma subsampling.

    Args:
        pixels: (H, W, 3) uint8 RGB.
        suffix: ".png", ".jpg" or ".jpeg".
        quality: The quality of a JPEG.

    Returns:
        The bytes of the file.

    Example:
        >>> square = np.full((2, 2, 3), 7, np.uint8)
        >>> decode_bytes(encode(square), "square")[0, 0].tolist()
        [7, 7, 7]
    """
    buffer = io.BytesIO()
    if suffix == ".png":
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=3)
    else:
        assert suffix in (".jpg", ".jpeg"), suffix
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def as_channels(pixels: Pixels, dtype: reading.DType = "float32") -> NDArray[Any]:
    """Turns (H, W, 3) or (H, W) uint8 into (3, H, W) or (1, H, W) of the same values.

    Args:
        pixels: The levels.
        dtype: "float32"; or "uint8", which shows the same memory where that may be written to.

    Example:
        >>> as_channels(np.zeros((4, 5, 3), np.uint8)).shape
        (3, 4, 5)
        >>> as_channels(np.zeros((4, 5), np.uint8), "uint8").shape
        (1, 4, 5)
    """
    check_choice("dtype", dtype, get_args(reading.DType))
    channels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if dtype == "float32":
        return np.ascontiguousarray(channels, dtype=np.float32)
    return channels if channels.flags.writeable else channels.copy("K")


def to_pixels(image: reading.Array) -> Pixels:
    """Turns (C, H, W) levels, float32 or uint8, into (H, W, C) uint8.

    It is the inverse of as_channels(). Floats are rounded, halves to even, and cut
    off at 0 and 255, which takes OpenCV a twentieth of NumPy's time.

    Example:
        >>> to_pixels(np.array([[[1.5, -3.0, 300.0]]], np.float32)).flatten().tolist()
        [2, 0, 255]
    """
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image.transpose(1, 2, 0), dtype=np.uint8)
    import cv2

    add: Any = cv2.add  # its stubs do not know a number as the second operand
    channels = [add(np.ascontiguousarray(channel), 0.0, dtype=cv2.CV_8U) for channel in image]
    merged: Any = cv2.merge(channels)
    return np.asarray(merged, np.uint8).reshape(*image.shape[1:], len(image))


def image_header(item: Item) -> reading.Header:
    """Returns what the header of an image says.

    Raises:
        BadImage: There is no such image, or it has more pixels than are read.
        CutImage: A JPEG has no end.
    """
    with item.open() as file, open_image(file, item.name) as image:
        kind, size = str(image.format), (image.height, image.width)
        if kind == "JPEG":
            file.seek(max(0, reading.size_of(item) - _AFTER_JPEG))
            if _END_OF_JPEG not in file.read(_AFTER_JPEG):
                raise CutImage(
                    f"{item.name}: the file is cut short, it has no end of a JPEG; fetch it again"
                )
        if getattr(image, "is_animated", False):  # or of several pages
            kind += ", the first of several"
    return reading.Header(kind, reading.size_of(item), size=size)


def image_content(item: Item, header: reading.Header) -> reading.Content:
    """Returns what the pixels of an image show.

    Raises:
        BadImage: It cannot be decoded.
        Empty: It certainly holds no subject.
    """
    pixels = decode_bytes(file_bytes(item), item.name)
    lack = lack_of_subject(pixels)
    if lack is not None and lack.is_sure:
        reading.refuse_empty(item.name, lack)
    digest = hashlib.sha256(str(pixels.shape).encode() + pixels.tobytes()).digest()
    return reading.Content(digest, doubt=lack.reason if lack else "")


# What an image holds is seen in the means of 8 x 8 cells. In the noise of a sensor they differ no
# more than by chance (the F statistic of an analysis of variance is 1), and a polynomial of the
# fourth degree fits those of a gradient.
# docs/how-to/check_data.md has the margins of faces, digits and drawings.
LEAST_EDGE = 8  # pixels, as of the smallest digits that people recognise
LEAST_CONTRAST = 0.5  # grey levels between cells, beside a gradient; 2.3 in drawings of a thin line
LEAST_F = 2.0  # of the cells to the grain within them; 0.8 in noise, 1.9 where JPEG smooths it
# Sensors have finer grain than this. What has coarser grain may be a texture, and digits have that.
FINE_LEVELS, LEAST_F_OF_TEXTURE = 25.0, 1.3
LEAST_BESIDE_GRADIENT = 0.05  # the share of the cells' contrast that no gradient explains
_CELLS, _LONGEST = 8, 256


def lack_of_subject(pixels: Pixels) -> reading.Lack | None:
    """Says what an image lacks to hold a subject: a face, a thing, a digit or a drawing.

    Args:
        pixels: (H, W, 3) or (H, W).

    Returns:
        What it lacks; None where it may well hold a subject.

    Example:
        >>> print(lack_of_subject(np.full((112, 112, 3), 7, np.uint8)).reason)
        all its pixels have one colour
        >>> square = np.zeros((28, 28), np.uint8)
        >>> square[8:12, 8:20] = 255
        >>> lack_of_subject(square) is None
        True
    """
    height, width = pixels.shape[:2]
    if min(height, width) < LEAST_EDGE:
        return reading.Lack(
            f"it has {height} x {width} pixels, and edges of {LEAST_EDGE} are the least that show "
            "anything"
        )
    # Fewer pixels show the same, noise included, where none are averaged.
    step = max(1, min(height, width) // _LONGEST)
    levels = np.atleast_3d(pixels[::step, ::step])
    rows, columns = (np.arange(_CELLS) * edge // _CELLS for edge in levels.shape[:2])
    sizes = np.outer(
        np.diff(rows, append=levels.shape[0]), np.diff(columns, append=levels.shape[1])
    )
    # A row of cells stays in the cache of the CPU for both sums.
    floats = np.empty((-(-len(levels) // _CELLS), *levels.shape[1:]), np.float32)
    sums = np.empty((2, _CELLS, *levels.shape[1:]), np.float32)
    for number, block in enumerate(np.split(levels, rows[1:])):
        row = floats[: len(block)]
        row[...] = block
        row.sum(axis=0, out=sums[0, number])
        np.square(row, out=row).sum(axis=0, out=sums[1, number])
    totals = np.add.reduceat(sums, columns, axis=2, dtype=np.float64)
    cells, squares = (totals / sizes[..., None]).reshape(2, _CELLS**2, -1)
    grain = np.maximum((squares - cells**2).mean(axis=0), 0.0)
    cells -= cells.mean(axis=0)
    gradient = _gradients()
    beside = (cells - gradient @ (gradient.T @ cells)).std(axis=0)
    contrast = cells.std(axis=0)
    if np.max(contrast + grain) == 0:
        return reading.Lack("all its pixels have one colour")
    if beside.max() < LEAST_CONTRAST:
        return reading.Lack("it shows one colour, a gradient or faint noise")
    is_fine = bool(grain.max() < FINE_LEVELS**2)
    if (beside**2 * sizes.mean() < (LEAST_F if is_fine else LEAST_F_OF_TEXTURE) * grain).all():
        return reading.Lack("it shows noise and nothing else", is_fine)
    if (beside < LEAST_BESIDE_GRADIENT * contrast).all():
        return reading.Lack("it shows a gradient and nothing else")
    return None


@cache
def _gradients() -> NDArray[np.float64]:
    """Polynomials of the fourth degree over the cells, (64, 15), orthonormal."""
    edge = (np.arange(_CELLS) + 0.5) / _CELLS - 0.5
    y, x = np.meshgrid(edge, edge, indexing="ij")
    powers = [x**i * y**j for i in range(5) for j in range(5 - i)]
    return np.linalg.qr(np.stack(powers, axis=-1).reshape(_CELLS**2, -1))[0]


INSPECTION = reading.Inspection(image_header, image_content)
