"""Images as files and as pixels; the fields of every format: tests/test_fields_of_formats.py."""

import io
import sys
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from likeness.eval.items.items import Item
from likeness.eval.reports import media
from likeness.toolkit.data import images, pixels
from likeness.toolkit.data.images import BadImage, Pixels, decode_bytes, file_bytes
from likeness.toolkit.data.pixels import PixelScale

RNG = np.random.default_rng(0)
SMOOTH = cv2.GaussianBlur(RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8), (0, 0), 4)


def file_of(image: Image.Image, form: str, **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **settings)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def decode(held: bytes) -> Pixels:
    return decode_bytes(held, "x")


def test_16_bit_grey_is_rounded_to_8():
    deep = np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)
    expected = np.rint(deep / 257).astype(np.uint8)
    assert np.array_equal(decode(file_of(Image.fromarray(deep), "PNG"))[..., 1], expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_agrees_with_opencv(orientation):
    contents = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=turned(orientation))
    theirs = cv2.imdecode(np.frombuffer(contents, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    ours = decode(contents)
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).max() <= 1


def test_damaged_exif_says_nothing_about_the_pixels():
    contents = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=turned(6))
    place = contents.index(b"Exif\0\0") + 6
    assert decode(contents).shape == (56, 40, 3)
    assert decode(contents[:place] + b"\xff" * 8 + contents[place + 8 :]).shape == (40, 56, 3)


def test_damaged_files_are_refused_with_the_reason(tmp_path, monkeypatch):
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


def test_sizes_are_seen_before_decoding(monkeypatch):
    content = file_of(Image.new("L", (300, 200)), "PNG")
    monkeypatch.setattr(images, "MAX_PIXELS", 60_000)
    assert decode_bytes(content, "a").shape == (200, 300, 3)
    monkeypatch.setattr(images, "MAX_PIXELS", 59_999)
    with pytest.raises(images.BadImage, match="200 x 300 pixels"):
        decode_bytes(content, "a")


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.filterwarnings("error")
def test_large_jpegs_are_read_at_half_of_their_edges(orientation, monkeypatch):
    """With smaller limits in the place of 67 and 200 megapixels."""
    monkeypatch.setattr(images, "MAX_PIXELS", 40 * 55)
    monkeypatch.setattr(images, "MAX_JPEG_PIXELS", 40 * 56)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1200)  # Pillow would warn
    jpeg = file_of(Image.fromarray(SMOOTH), "JPEG", quality=95, exif=turned(orientation))
    half = cv2.resize(SMOOTH, (28, 20), interpolation=cv2.INTER_AREA)
    ours = decode(jpeg)
    expected = np.rot90(half, -1) if orientation == 6 else half
    assert ours.shape == expected.shape
    assert np.abs(ours.astype(int) - expected).max() <= 6
    with pytest.raises(BadImage, match="2200 in all"):
        decode(file_of(Image.fromarray(SMOOTH), "PNG"))
    with pytest.raises(BadImage, match="2240 in all"):
        decode(file_of(Image.fromarray(np.tile(SMOOTH, (1, 2, 1))[:, :58]), "JPEG"))


def test_heic_is_read_upright(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    Image.fromarray(SMOOTH).save(tmp_path / "a.heic", quality=100, exif=turned(6).tobytes())
    pixels = decode(file_bytes(Item("a", tmp_path / "a.heic")))
    assert pixels.shape == (56, 40, 3)
    assert np.abs(pixels.astype(int) - np.rot90(SMOOTH, -1)).mean() < 6
    assert media.thumbnail(tmp_path / "a.heic").startswith(b"\x89PNG")


def test_without_pillow_heif_the_line_to_type_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(BadImage, match=r"a.heic: HEIC .*\[heic\]"):
        decode_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a.heic")


LOW = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
PICTURE = Image.fromarray(LOW).resize((117, 121), Image.Resampling.BICUBIC)
PLAIN: dict[str, dict[str, Any]] = {
    "usual": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0, "quality": 95},
    "4:2:0": {"subsampling": 2, "quality": 30},
    "restarts": {"restart_marker_blocks": 3},
    "upright": {"exif": turned(1)},
}


def jpeg(mode: str = "RGB", picture: Image.Image = PICTURE, **settings: Any) -> bytes:
    return file_of(picture.convert(mode), "JPEG", **settings)


def by_opencv(content: bytes) -> np.ndarray | None:
    with Image.open(io.BytesIO(content)) as image:
        return images._plain_jpeg(image, content)


def by_pillow(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_jpegs_have_pillows_pixels(kind, mode):
    content = jpeg(mode, **PLAIN[kind])
    pixels = by_opencv(content)
    assert pixels is not None
    np.testing.assert_array_equal(pixels, by_pillow(content))
    np.testing.assert_array_equal(decode_bytes(content, "x"), pixels)


@pytest.mark.parametrize(
    "content",
    [jpeg("CMYK"), jpeg(exif=turned(6)), jpeg() + b"more", jpeg()[:-2]],
    ids=["CMYK", "turned", "bytes after the end", "no end"],
)
def test_pillow_decodes_the_others(content):
    assert by_opencv(content) is None


def test_damaged_files_are_decoded_or_refused_as_by_pillow(monkeypatch, capfd):
    """Cut, with bytes left out, and with an end that was put after a cut."""
    rng = np.random.default_rng(0)

    def outcome(content: bytes) -> bytes | None:
        try:
            return decode_bytes(content, "x").tobytes()
        except BadImage:
            return None

    whole = [jpeg(mode, **settings) for mode in ("RGB", "L") for settings in PLAIN.values()]
    damaged = []
    for content in whole:
        for _ in range(8):
            place, missing = int(rng.integers(2, len(content) - 2)), int(rng.integers(1, 30))
            ends = (b"", b"\xff\xd9", content[place + missing :])
            damaged += [content[:place] + end for end in ends]
    ours = [outcome(content) for content in damaged]
    monkeypatch.setattr(images, "_plain_jpeg", lambda image, content: None)
    assert ours == [outcome(content) for content in damaged]
    assert 0 < ours.count(None) < len(ours)
    capfd.readouterr()  # libjpeg's own warnings


LEVELS = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
BATCH = torch.from_numpy(LEVELS.transpose(2, 0, 1).copy()).float().unsqueeze(0)


def test_faces_as_the_field_feeds_them():
    # as insightface's ArcFaceONNX, from BGR
    blob = cv2.dnn.blobFromImage(LEVELS, 1 / 127.5, None, (127.5, 127.5, 127.5), swapRB=True)
    assert_close(pixels.ADAFACE()(BATCH)[0], torch.from_numpy(blob), atol=1e-6, rtol=0)
    assert torch.equal(pixels.INSIGHTFACE()(BATCH)[0], (BATCH - 127.5) / 127.5)


def test_images_as_the_field_feeds_them():
    image = BATCH.double()
    scaled, lengths = pixels.BN_INCEPTION().double()(image)
    assert lengths is None
    # Caffe's: BGR less its means
    means = torch.tensor([104.0, 117.0, 128.0], dtype=torch.float64).view(3, 1, 1)
    assert_close(scaled, image.flip(1) - means, atol=2e-4, rtol=0)
    each = PixelScale((1.0, 2.0, 3.0), (1.0, 2.0, 4.0), scale=1.0, bgr=True)(BATCH)[0]
    assert torch.equal(each[0, 0], (BATCH[0, 2] - 3) / 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pixels.IMAGENET()(BATCH)[0].dtype == torch.float32
