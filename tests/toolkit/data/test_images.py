"""Decoding images: every format and mode, orientation and depth against Pillow's levels and
OpenCV's, and what is refused.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from likeness.eval.reports import media
from likeness.toolkit.data import images
from likeness.toolkit.data.images import BadImage, Pixels, as_channels, decode_bytes, file_bytes
from likeness.toolkit.data.items import Item

RNG = np.random.default_rng(0)
SMOOTH = cv2.GaussianBlur(RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8), (0, 0), 4)
FORMATS = ["PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP"]


def file_of(image: Image.Image, form: str, **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **settings)
    return buffer.getvalue()


def decode(held: bytes) -> Pixels:
    return decode_bytes(held, "x")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_pixels(form: str) -> None:
    contents = file_of(
        Image.fromarray(SMOOTH), form, **({"lossless": True} if form == "WEBP" else {})
    )
    assert np.array_equal(
        decode(contents), np.asarray(Image.open(io.BytesIO(contents)).convert("RGB"))
    )
    if form not in ("GIF", "JPEG"):
        assert np.array_equal(decode(contents), SMOOTH)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    image = Image.fromarray(SMOOTH).convert(mode)
    ours = decode(file_of(image, "JPEG", quality=100) if mode == "CMYK" else file_of(image, "PNG"))
    assert ours.shape == SMOOTH.shape
    assert ours.dtype == np.uint8
    if mode in ("RGBA", "CMYK"):
        assert np.abs(ours.astype(int) - SMOOTH).max() <= (12 if mode == "CMYK" else 0)
    if mode in ("L", "LA"):
        assert np.array_equal(ours[..., 0], np.asarray(Image.fromarray(SMOOTH).convert("L")))


def test_16_bit_grey_is_rounded_to_8() -> None:
    deep = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    expected = np.rint(deep / 257).astype(np.uint8)
    assert np.array_equal(decode(file_of(Image.fromarray(deep), "PNG"))[..., 1], expected)
    pgm = b"P5 30 20 65535\n" + deep.astype(">u2").tobytes()
    assert np.array_equal(decode(pgm)[..., 1], expected)
    for levels, reason in (
        (deep.astype(np.float32), "floating-point"),
        (deep.astype(np.int32) * 2, "32-bit"),
    ):
        with pytest.raises(BadImage, match=f"x: .*{reason}.*convert it to 8 bits"):
            decode(file_of(Image.fromarray(levels), "TIFF"))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_agrees_with_opencv(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    contents = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=exif)
    theirs = cv2.imdecode(np.frombuffer(contents, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    ours = decode(contents)
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_damaged_exif_says_nothing_about_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    contents = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=exif)
    place = contents.index(b"Exif\0\0") + 6
    assert decode(contents).shape == (56, 40, 3)
    assert decode(contents[:place] + b"\xff" * 8 + contents[place + 8 :]).shape == (40, 56, 3)


def test_damaged_files_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jpeg = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95)
    for name, payload, reason in [
        ("cut.jpg", jpeg[: len(jpeg) // 2], "[Tt]runcated"),
        ("text.jpg", b"not an image", "none of the formats"),
        ("empty.jpg", b"", "none of the formats"),
        ("a.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "none of the formats"),
    ]:
        with pytest.raises(BadImage, match=f"{name}: .*{reason}"):
            decode_bytes(payload, name)
    with pytest.raises(BadImage, match=r"missing.jpg: No such file"):
        file_bytes(Item("m", tmp_path / "missing.jpg"))
    monkeypatch.setattr(images, "MAX_BYTES", 2**17)
    (tmp_path / "large.jpg").write_bytes(bytes(2**17 + 1))
    with pytest.raises(BadImage, match="over 131072 bytes"):
        file_bytes(Item("l", tmp_path / "large.jpg"))


def test_levels_become_floats_of_the_same_values() -> None:
    assert np.array_equal(as_channels(SMOOTH), SMOOTH.transpose(2, 0, 1))
    assert np.array_equal(as_channels(SMOOTH[:, :, 0]), SMOOTH[None, :, :, 0])
    assert as_channels(SMOOTH).dtype == np.float32
    assert as_channels(SMOOTH).flags.c_contiguous


def test_sizes_are_seen_before_decoding() -> None:
    buffer = io.BytesIO()
    Image.new("L", (300, 200)).save(buffer, "PNG")
    images.open_encoded(buffer.getvalue(), "a", max_pixels=60_000)
    with pytest.raises(images.BadImage, match="200 x 300 pixels"):
        images.open_encoded(buffer.getvalue(), "a", max_pixels=59_999)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.filterwarnings("error")
def test_large_jpegs_are_read_at_half_of_their_edges(
    turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With smaller limits in the place of 67 and 200 megapixels."""
    monkeypatch.setattr(images, "MAX_PIXELS", 40 * 55)
    monkeypatch.setattr(images, "MAX_JPEG_PIXELS", 40 * 56)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)  # Pillow would warn
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    jpeg = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=exif)
    half = cv2.resize(SMOOTH, (28, 20), interpolation=cv2.INTER_AREA)
    ours = decode(jpeg)
    expected = np.rot90(half, -1) if turned else half
    assert ours.shape == expected.shape
    assert np.abs(ours.astype(int) - expected).max() <= 6
    cut, box = images.open_encoded(jpeg, "a").part((2, 4, 12, 14), least=4)
    assert (cut.shape, box) == ((5, 5, 3), (0, 0, 5, 5))
    assert np.array_equal(cut, ours[2:7, 1:6])
    with pytest.raises(BadImage, match="2200 in all"):
        decode(file_of(Image.fromarray(SMOOTH), "PNG"))
    with pytest.raises(BadImage, match="2240 in all"):
        decode(file_of(Image.fromarray(np.tile(SMOOTH, (1, 2, 1))[:, :58]), "JPEG"))


def test_heic_is_read_upright(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(SMOOTH).save(tmp_path / "a.heic", quality=100, exif=exif.tobytes())
    pixels = decode(file_bytes(Item("a", tmp_path / "a.heic")))
    assert pixels.shape == (56, 40, 3)
    assert np.abs(pixels.astype(int) - np.rot90(SMOOTH, -1)).mean() < 6
    assert media.thumbnail(tmp_path / "a.heic").startswith(b"\x89PNG")


def test_without_pillow_heif_the_line_to_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage, match=r"a.heic: HEIC .*likeness\[heic\]"):
        decode_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a.heic")
