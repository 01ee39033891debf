"""Plain JPEGs, which OpenCV decodes, have Pillow's pixels and Pillow's refusals, and are decoded at
reduced size where a view needs no more.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from likeness.toolkit.data import images
from likeness.toolkit.data.images import BadImage, decode_bytes, open_encoded

LOW = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
PICTURE = Image.fromarray(LOW).resize((117, 121), Image.Resampling.BICUBIC)
PLAIN: dict[str, dict[str, Any]] = {
    "usual": {},
    "progressive": {"progressive": True},
    "4:4:4": {"subsampling": 0, "quality": 95},
    "4:2:0": {"subsampling": 2, "quality": 30},
    "restarts": {"restart_marker_blocks": 3},
}


def jpeg(mode: str = "RGB", picture: Image.Image = PICTURE, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    picture.convert(mode).save(buffer, "JPEG", **settings)
    return buffer.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def by_opencv(content: bytes, shrink: int = 1) -> np.ndarray | None:
    with Image.open(io.BytesIO(content)) as image:
        return images._plain_jpeg(image, content, shrink)


def by_pillow(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_jpegs_have_pillows_pixels(kind: str, mode: str) -> None:
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
def test_pillow_decodes_the_others(content: bytes) -> None:
    assert by_opencv(content) is None


def test_upright_exif_is_plain() -> None:
    assert by_opencv(jpeg(exif=turned(1))) is not None


def test_damaged_files_are_decoded_or_refused_as_by_pillow(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
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
            damaged += [
                content[:place],
                content[:place] + b"\xff\xd9",
                content[:place] + content[place + missing :],
            ]
    ours = [outcome(content) for content in damaged]
    monkeypatch.setattr(images, "_plain_jpeg", lambda image, content, shrink: None)
    assert ours == [outcome(content) for content in damaged]
    assert 0 < ours.count(None) < len(ours)
    capfd.readouterr()  # libjpeg's own warnings


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_reduced_sizes_are_rounded_up(shrink: int) -> None:
    pixels = decode_bytes(jpeg(quality=95), "x", shrink=shrink)
    assert pixels.shape == (-(-121 // shrink), -(-117 // shrink), 3)
    rows, columns = 121 // shrink * shrink, 117 // shrink * shrink
    whole = decode_bytes(jpeg(quality=95), "x")[:rows, :columns].astype(float)
    means = whole.reshape(rows // shrink, shrink, columns // shrink, shrink, 3).mean((1, 3))
    assert np.abs(pixels[: len(means), : means.shape[1]] - means).mean() < 1.0


def test_other_formats_are_decoded_whole_whatever_is_asked() -> None:
    buffer = io.BytesIO()
    PICTURE.save(buffer, "PNG")
    assert decode_bytes(buffer.getvalue(), "x", shrink=4).shape == (121, 117, 3)
    assert decode_bytes(jpeg(exif=turned(6)), "x", shrink=4).shape == (117, 121, 3)


@pytest.mark.parametrize(
    ("least", "shape"),
    [(50, (100, 100)), (49, (50, 50)), (26, (50, 50)), (24, (25, 25)), (12, (13, 13))],
)
def test_a_part_keeps_enough_pixels(least: int, shape: tuple[int, int]) -> None:
    image = open_encoded(jpeg(), "x")
    cut, box = image.part((10, 10, 110, 110) if least != 50 else (10, 10, 109, 110), least=least)
    if least == 50:  # an edge of 99 pixels cannot be halved
        assert (cut.shape[:2], box) == ((100, 99), (0, 0, 99, 100))
        np.testing.assert_array_equal(cut, decode_bytes(jpeg(), "x")[10:110, 10:109])
    else:
        assert min(box[2] - box[0], box[3] - box[1]) >= least
        assert cut.shape[0] == pytest.approx(shape[0], abs=1)
        assert 0 <= box[0] < 1
        assert box[2] <= cut.shape[1] < box[2] + 1


def test_parts_are_stated_in_pixels_of_the_resized_image() -> None:
    image = open_encoded(jpeg(), "x")._replace(size=(242, 234))
    cut, box = image.part((20, 40, 121, 100), least=1000)
    np.testing.assert_array_equal(cut, decode_bytes(jpeg(), "x")[20:50, 10:61])
    assert box == pytest.approx((0, 0, 50.5, 30))


def test_sizes_of_encoded_images_are_upright() -> None:
    assert open_encoded(jpeg(), "x").size == (121, 117)
    image = open_encoded(jpeg(exif=turned(6)), "x")
    assert image.size == image.file_size == (117, 121)
    cut, box = image.part((0, 0, 121, 117), least=1)
    np.testing.assert_array_equal(cut, decode_bytes(jpeg(exif=turned(6)), "x"))
    assert box == (0, 0, 121, 117)
