"""Picture files with every field that their formats have, written byte by byte where Pillow cannot.

`PICTURES` has for each suffix that is read its fields, each with a file and what it shows: levels
(H, W, 3), or the words of a refusal.
"""

import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Shown = NDArray[Any] | str
Case = tuple[bytes | Callable[[], bytes], Shown]
GREY = 128  # what transparent pictures are laid on
# Two rows of three pixels: red at the top left, and what a quarter turn to the right makes of it.
CORNER = np.zeros((2, 3, 3), np.uint8)
CORNER[0, 0] = 255, 0, 0
TURNED = np.rot90(CORNER, -1)
HIDDEN = np.full((2, 2, 4), (200, 10, 60, 0), np.uint8)  # a colour that nobody sees
HIDDEN[0, 0, 3] = 255
SEEN = np.full((2, 2, 3), GREY, np.uint8)
SEEN[0, 0] = 200, 10, 60


def flat(*rgb: int) -> NDArray[np.uint8]:
    """A picture of one pixel."""
    return np.array([[rgb if len(rgb) == 3 else rgb * 3]], np.uint8)


def greys(*levels: int) -> NDArray[np.uint8]:
    """A row of grey pixels."""
    return np.array([[[level] * 3 for level in levels]], np.uint8)


def saved(picture: Image.Image | NDArray[Any], file_format: str, **settings: Any) -> bytes:
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    file = io.BytesIO()
    image.save(file, file_format, **settings)
    return file.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(depth: int, colours: int, pixel: bytes, *chunks: bytes) -> bytes:
    """A PNG of one pixel."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, depth, colours, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"\0" + pixel))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + data + chunk(b"IEND", b"")


TAGS = {"orientation": 274, "sample_format": 339, "profile": 34675}


def tiff(bits: int, data: bytes, *, photometric: int = 1, **tags: int) -> bytes:
    """A grey TIFF of one row of two pixels."""
    stated = {256: 2, 257: 1, 258: bits, 259: 1, 262: photometric, 277: 1, 278: 1}
    stated |= {273: 8 + 2 + 12 * 9 + 12 * len(tags) + 4, 279: len(data)}
    stated |= {TAGS[name]: tags[name] for name in tags}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, stated[tag]) for tag in sorted(stated))
    return b"II*\0" + struct.pack("<IH", 8, len(stated)) + entries + bytes(4) + data


def bmp(pixels: bytes, *, alpha: bool) -> bytes:
    """A BMP of one row of two pixels of 32 bits, whose header may name a mask of alpha."""
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000 * alpha)
    header = struct.pack("<IiiHHIIiiII", 108, 2, 1, 1, 32, 3, len(pixels), 0, 0, 0, 0) + masks
    header += struct.pack("<I", 0x73524742) + bytes(48)
    size = 14 + len(header)
    return b"BM" + struct.pack("<IHHI", size + len(pixels), 0, 0, size) + header + pixels


# White, red, green and blue of Display P3, times 100,000.
WIDE_XY = (31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)


def profile(space: bytes, tags: dict[bytes, bytes]) -> bytes:
    """A profile (ICC, version 2) of an input device."""
    table, data = struct.pack(">I", len(tags)), b""
    begin = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        table += name + struct.pack(">II", begin + len(data), len(content))
        data += content + bytes(-len(content) % 4)
    connection = b"Lab " if b"A2B0" in tags else b"XYZ "
    size = begin + len(data)
    head = struct.pack(">I4sI4s4s4s", size, b"lcms", 0x02400000, b"mntr", space, connection)
    head += bytes(12) + b"acsp" + bytes(28) + struct.pack(">3i", 63190, 65536, 54061)
    return head.ljust(128, b"\0") + table + data


def xyz(*numbers: float) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(n * 65536) for n in numbers))


def curve(gamma: float) -> bytes:
    return b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256))


def wide_profile() -> bytes:
    """The primaries of Display P3, with a gamma of 2.2."""
    primaries = {b"rXYZ": (0.5151, 0.2412, -0.0011), b"gXYZ": (0.292, 0.6922, 0.0419)}
    primaries |= {b"bXYZ": (0.1571, 0.0666, 0.7841), b"wtpt": (0.9642, 1.0, 0.8249)}
    tags = {name: xyz(*numbers) for name, numbers in primaries.items()}
    return profile(b"RGB ", tags | dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve(2.2)))


def from_wide(*levels: int) -> NDArray[np.float64]:
    """What levels of `wide_profile` are in sRGB, by their definitions."""
    wide = [[0.5151, 0.292, 0.1571], [0.2412, 0.6922, 0.0666], [-0.0011, 0.0419, 0.7841]]
    srgb = [[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]]
    linear = np.linalg.solve(srgb, np.array(wide) @ (np.array(levels) / 255) ** 2.2).clip(0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(255 * curved)


def linear_grey_profile() -> bytes:
    return profile(b"GRAY", {b"wtpt": xyz(0.9642, 1.0, 0.8249), b"kTRC": curve(1.0)})


def ink_profile() -> bytes:
    """CMYK whose black alone darkens: the other inks print nothing."""
    identity = bytes(range(256))
    matrix = struct.pack(">9i", *(65536 * (i % 4 == 0) for i in range(9)))
    nodes = b"".join(bytes([255 * (1 - i % 2), 128, 128]) for i in range(16))
    table = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + matrix + identity * 4 + nodes + identity * 3
    return profile(b"CMYK", {b"wtpt": xyz(0.9642, 1.0, 0.8249), b"A2B0": table})


def exif() -> Image.Exif:
    """An orientation that turns a picture a quarter to the right."""
    stated = Image.Exif()
    stated[0x0112] = 6
    return stated


WIDE, NARROW = flat(200, 100, 50), from_wide(200, 100, 50)[None, None]
CYAN = Image.new("CMYK", (8, 8), (255, 0, 0, 0))
BLOCKS = np.kron(CORNER, np.ones((16, 16, 1), np.uint8))  # which JPEG keeps
PURE = np.full((16, 16, 3), (255, 0, 0), np.uint8)


def several(file_format: str, **settings: Any) -> bytes:
    """A file whose first picture is red, and the second blue."""
    blue = Image.fromarray(np.ascontiguousarray(PURE[..., ::-1]))
    return saved(PURE, file_format, save_all=True, append_images=[blue], **settings)


def jpeg(picture: Image.Image | NDArray[Any], **settings: Any) -> bytes:
    return saved(picture, "JPEG", quality=100, **settings)


def plain(levels: Any) -> NDArray[Any]:
    """A picture of 8 x 8 equal pixels."""
    return np.tile(np.broadcast_to(levels, (1, 1, 3)), (8, 8, 1))


GREY_55 = np.full((8, 8), 55, np.uint8)
JPEG: dict[str, Case] = {
    "orientation": (jpeg(BLOCKS, subsampling=0, exif=exif()), np.rot90(BLOCKS, -1)),
    "profile": (jpeg(plain(WIDE), icc_profile=wide_profile()), plain(NARROW)),
    "profile of grey": (jpeg(GREY_55, icc_profile=linear_grey_profile()), plain(128)),
    "CMYK, inverted as Adobe does": (jpeg(CYAN), plain((0, 255, 255))),
    "CMYK with a profile": (jpeg(CYAN, icc_profile=ink_profile()), plain(255)),
    "several pictures (MPO)": (several("MPO", quality=100), PURE),
}
HDR = chunk(b"cICP", b"\x09\x10\0\1")
rgb, clear = partial(png, 8, 2, b"\1\2\3"), partial(chunk, b"tRNS")


def gamma(number: int) -> bytes:
    return chunk(b"gAMA", struct.pack(">I", number))


PNG: dict[str, Case] = {
    "alpha": (saved(HIDDEN, "PNG"), SEEN),
    "half of alpha": (png(8, 6, b"\xff\0\0\x80"), flat(191, 64, 64)),
    "alpha of grey": (png(8, 4, b"\x10\0"), flat(GREY)),
    "alpha of 16 bits": (png(16, 6, b"\x10\0" * 3 + b"\0\0"), flat(GREY)),
    "transparent colour": (rgb(clear(b"\0\1\0\2\0\3")), flat(GREY)),
    "another transparent colour": (rgb(clear(b"\0\1\0\2\0\4")), flat(1, 2, 3)),
    "transparent grey of 16 bits": (png(16, 0, b"\x10\1", clear(b"\x10\1")), flat(GREY)),
    "transparent colour of 16 bits": (png(16, 2, b"\x10\1" * 3, clear(b"\x10\1" * 3)), "16-bit"),
    "transparent entry of a palette": (
        png(8, 3, b"\1", chunk(b"PLTE", b"\0\0\0\t\t\t"), clear(b"\xff\0")),
        flat(GREY),
    ),
    "palette": (png(8, 3, b"\1", chunk(b"PLTE", b"\0\0\0\t\x08\x07")), flat(9, 8, 7)),
    "16 bits of grey": (png(16, 0, b"\x80\x80"), flat(128)),
    "16 bits of colour": (png(16, 2, b"\xff\xff\x80\x80\0\0"), flat(255, 128, 0)),
    "4 bits": (png(4, 0, b"\x70"), flat(119)),
    "1 bit": (png(1, 0, b"\x80"), flat(255)),
    "gamma": (png(8, 0, b"\x10", gamma(100_000)), flat(72)),
    "gamma of sRGB": (png(8, 0, b"\x10", gamma(45_455)), flat(16)),
    "gamma beside sRGB": (png(8, 0, b"\x10", gamma(99_999), chunk(b"sRGB", b"\0")), flat(16)),
    "primaries": (rgb(chunk(b"cHRM", struct.pack(">8I", *WIDE_XY))), "primaries"),
    "colours of HDR": (rgb(HDR), "cICP"),
    "colours of HDR behind a long text": (rgb(chunk(b"tEXt", bytes(70_000)), HDR), "cICP"),
    "a text that names colours": (rgb(chunk(b"tEXt", b"a\0" + HDR)), flat(1, 2, 3)),
    "colours of sRGB": (rgb(chunk(b"cICP", b"\1\x0d\0\1")), flat(1, 2, 3)),
    "profile": (saved(WIDE, "PNG", icc_profile=wide_profile()), NARROW),
    "damaged profile": (saved(flat(9, 8, 7), "PNG", icc_profile=b"none"), flat(9, 8, 7)),
    "orientation": (saved(CORNER, "PNG", exif=exif()), TURNED),
    "several frames": (several("PNG"), PURE),
}
TIFF: dict[str, Case] = {
    "alpha": (saved(HIDDEN, "TIFF"), SEEN),
    "orientation": (tiff(8, b"\x10\x20", orientation=6), greys(16, 32).swapaxes(0, 1)),
    "1 bit, white is 0": (tiff(1, b"\x80", photometric=0), greys(0, 255)),
    "12 bits": (tiff(12, b"\xff\xf8\0"), greys(255, 128)),
    "16 bits": (tiff(16, b"\x80\x80\xff\xff"), greys(128, 255)),
    "16 bits, white is 0": (tiff(16, b"\x80\x80\xff\xff", photometric=0), greys(127, 0)),
    "32 bits": (tiff(32, bytes(8)), "range"),
    "signed levels": (tiff(16, b"\1\0\2\0", sample_format=2), "signed"),
    "floats": (tiff(32, bytes(8), sample_format=3), "range"),
    "CMYK": (saved(Image.new("CMYK", (1, 1), (255, 0, 0, 0)), "TIFF"), flat(0, 255, 255)),
    "a number as a profile": (tiff(8, b"\x10\x20", profile=7), greys(16, 32)),
    "profile": (saved(WIDE, "TIFF", icc_profile=wide_profile()), NARROW),
    "several pages": (several("TIFF"), PURE),
}
GIF: dict[str, Case] = {
    "transparent colour": (saved(HIDDEN, "GIF"), SEEN),
    "several frames": (several("GIF"), PURE),
}
WEBP: dict[str, Case] = {
    "alpha": (saved(HIDDEN, "WEBP", lossless=True, exact=True), SEEN),
    "orientation": (saved(CORNER, "WEBP", lossless=True, exif=exif()), TURNED),
    "profile": (saved(WIDE, "WEBP", lossless=True, icc_profile=wide_profile()), NARROW),
    "several frames": (several("WEBP", lossless=True), PURE),
}
BMP: dict[str, Case] = {
    "alpha": (bmp(b"\1\2\3\0\1\2\3\xff", alpha=True), np.array([[[GREY] * 3, [3, 2, 1]]])),
    "no alpha": (bmp(b"\1\2\3\0\1\2\3\xff", alpha=False), np.array([[[3, 2, 1]] * 2])),
    "1 bit": (saved(np.array([[True]]), "BMP"), flat(255)),
}
PNM: dict[str, Case] = {
    "greatest level of grey": (b"P5 1 1 100\n\x32", flat(128)),
    "16 bits of grey": (b"P5 1 1 1023\n\x02\0", flat(128)),
    "16 bits of colour": (b"P6 1 1 65535\n\xff\xff\x80\x80\0\0", flat(255, 128, 0)),
    "1 bit, where 1 is black": (b"P4 1 1\n\x80", flat(0)),
    "floats": (b"Pf 1 1 -1.0\n\0\0\0?", "range"),
}
TILE = np.ones((32, 32, 1), np.uint8)
HEIF: dict[str, Case] = {
    "alpha": (lambda: saved(np.kron(HIDDEN, TILE), "HEIF", quality=-1), np.kron(SEEN, TILE))
}
PICTURES = {".png": PNG, ".bmp": BMP, ".webp": WEBP, ".gif": GIF}
PICTURES |= dict.fromkeys((".jpg", ".jpeg"), JPEG) | dict.fromkeys((".tif", ".tiff"), TIFF)
PICTURES |= dict.fromkeys((".pgm", ".ppm", ".pbm"), PNM) | dict.fromkeys((".heic", ".heif"), HEIF)
