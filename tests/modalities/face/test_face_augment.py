"""Augmentation: what each operation does, against independent statements of it; probabilities;
determinism per item.
"""

from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from likeness.modalities.face import augment
from likeness.toolkit.data.images import as_channels

RNG = np.random.default_rng(3)
FACE = cv2.GaussianBlur(RNG.integers(0, 256, (112, 112, 3), dtype=np.uint8), (0, 0), 3)
# no zeros: black is what was cut
FACE = cv2.normalize(FACE, None, 1, 255, cv2.NORM_MINMAX).astype(np.uint8)


rng = np.random.default_rng


class Largest(np.random.Generator):
    """A generator whose uniform numbers are the largest of their range."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def uniform(self, low: float, high: float) -> float:  # type: ignore[override]
        return high


def test_crop_paste_keeps_a_rectangle_in_place() -> None:
    shares, ratios = [], []
    for seed in range(300):
        pasted = augment.crop_paste(FACE, rng(seed))
        kept = pasted.any(axis=2)
        rows, columns = np.flatnonzero(kept.any(axis=1)), np.flatnonzero(kept.any(axis=0))
        inside = (slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1))
        assert kept[inside].all()
        assert kept.sum() == kept[inside].size
        assert np.array_equal(pasted[inside], FACE[inside])
        shares.append(kept.mean())
        ratios.append(columns.size / rows.size)
    assert 0.19 < min(shares) < 0.3 < 0.9 < max(shares) <= 1.0
    assert 0.73 < min(ratios) < max(ratios) < 1.37
    # uniform from .2 to 1 has .6; what does not fit is drawn again, so a little less
    assert 0.5 < np.mean(shares) < 0.62
    flat = np.full((10, 90, 3), 9, np.uint8)  # no draw fits: the centred part within the ratio
    assert augment.crop_paste(flat, Largest()).any(axis=2).sum(axis=1).tolist() == [13] * 10


def test_low_resolution_is_two_resizes() -> None:
    for seed in range(40):
        same = rng(seed)
        small = int(same.uniform(0.2, 1.0) * 112)
        down, up = (augment.INTERPOLATIONS[i] for i in same.integers(5, size=2))
        shrunk = cv2.resize(FACE, (small, small), interpolation=down)
        expected = cv2.resize(shrunk, (112, 112), interpolation=up)
        assert np.array_equal(augment.low_resolution(FACE, rng(seed)), expected)


def test_photometric_agrees_with_pillow_as_torchvision_uses_it() -> None:
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for seed in range(10):
        draws = rng(seed)
        factors = [draws.uniform(0.5, 1.5) for _ in enhancers]
        expected = Image.fromarray(FACE)
        for place in draws.permutation(3):
            expected = enhancers[place](expected).enhance(factors[place])
        changed = augment.photometric(FACE, rng(seed)).astype(int)
        assert np.abs(changed - np.asarray(expected)).max() <= 4


def test_cvlface_warp_is_the_published_product_of_matrices() -> None:
    """As the repository states it, step by step, for three points (x, y)."""
    for seed in range(20):
        draws = rng(seed)
        scale, angle, extra = draws.uniform((0.8, -20, 0), (1.2, 20, 0.1))
        share, sign, hflip = draws.random(2), draws.choice((-1.0, 1.0), 2), bool(seed % 2)
        matrix = augment.warp_matrix(112, 112, scale, angle, hflip, share, sign, extra)
        cos, sin = np.cos(np.deg2rad(-angle)), np.sin(np.deg2rad(-angle))
        padding = (56 / scale - 56 + extra * 56) * sign
        for point in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
            turned = np.array([[cos, -sin], [sin, cos]]) @ np.subtract(point, 56) + 56
            shifted = turned - (56 * (1 - share) + (56 + padding) * share)
            expected = shifted * scale * (-1 if hflip else 1, 1) + 56
            assert np.allclose(matrix[:2] @ (*point, 1.0), expected, atol=1e-3)


def test_cvlface_view_without_changes_is_the_image_and_each_part_acts() -> None:
    image, probabilities = as_channels(FACE), ("rotate", "flip", "cutout", "blur")
    none: dict[str, Any] = {f"{part}_prob": 0.0 for part in probabilities}
    none |= {"scale": (1.0, 1.0), "extra_offset": 0.0, "num_photo": 0}

    def view(seed: int, **settings: Any) -> bytes:
        return augment.geometric_view(image, rng(seed), rng(0), **none | settings).tobytes()

    assert view(0) == image.tobytes()
    parts = [(f"{part}_prob", 1.0) for part in probabilities]
    for name, value in [("scale", (0.8, 0.8)), *parts]:
        changed = sum(view(seed, **{name: value}) != image.tobytes() for seed in range(20))
        assert changed >= 17, name
    seen = {view(seed, num_photo=1) for seed in range(600)}
    equalized = as_channels(np.asarray(ImageOps.equalize(Image.fromarray(FACE))))
    grey = as_channels(cv2.cvtColor(cv2.cvtColor(FACE, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB))
    assert {image.tobytes(), equalized.tobytes(), grey.tobytes()} <= seen
    assert len(seen) > 20
