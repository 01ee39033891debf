"""Training views: deterministic per item, exact where they are exact, near Pillow's where they
resize; of uint8 and of float32.
"""

import random
from functools import partial
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from likeness.eval.items.items import Item
from likeness.modalities.face import augment as faces
from likeness.modalities.image import transforms
from likeness.modalities.image.images import read
from likeness.toolkit.data import pixels
from likeness.toolkit.data.images import as_channels, to_pixels
from likeness.toolkit.data.reading import Floats
from likeness.toolkit.models.parts import describe


def smooth_image(height: int, width: int) -> Floats:
    low = np.random.default_rng(3).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    picture = Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(picture).transpose(2, 0, 1).astype(np.float32)


def seen(view: Any, image: Floats, seed: int = 0) -> Floats:
    """What a view makes of an image with the generator of a seed."""
    return view(image, np.random.default_rng(seed), np.random.default_rng(0))


VIEWS = {
    "cars": (transforms.VMF_CARS, (256, 256), (224, 224)),
    "cub": (transforms.VMF_CUB, (256, 300), (224, 224)),
    "sop": (transforms.VMF_SOP, (256, 256), (224, 224)),
    "cifar": (transforms.VMF_CIFAR10, (32, 32), (32, 32)),
    "benchmarker": (transforms.BENCHMARKER, (256, 280), (227, 227)),
    "warp": (partial(transforms.warp_view), (28, 30), (28, 30)),
    "adaface": (faces.ADAFACE_VIEW, (112, 112), (112, 112)),
    "cvlface": (partial(faces.geometric_view), (112, 112), (112, 112)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_functions_of_their_generator(name: str) -> None:
    view, size, expected = VIEWS[name]
    image = smooth_image(*size)
    kept = image.copy()
    draws = [seen(view, image, seed) for seed in (1, 2, 1)]
    np.testing.assert_array_equal(image, kept)
    rngs = [np.random.default_rng(1) for _ in range(2)]
    inputs = (kept.astype(np.uint8), kept.astype(np.uint8).astype(np.float32))
    ours, floats = (view(x, rng, rng) for x, rng in zip(inputs, rngs, strict=True))
    assert floats.dtype == np.float32
    np.testing.assert_array_equal(ours, floats)
    assert rngs[0].random() == rngs[1].random()
    assert draws[0].shape == (3, *expected)
    assert draws[0].dtype == np.float32
    np.testing.assert_array_equal(draws[0], draws[2])  # another image was drawn in between
    assert np.abs(draws[0] - draws[1]).mean() > 1
    describe(view, "augment")  # a recipe's part


def test_whole_crop_is_pillows_resize() -> None:
    """The crop of everything, at a size close to it and at half: bilinear as Pillow's antialiased
    one, within rounding and the filters' small difference.
    """
    image = smooth_image(160, 160)
    for size, most in ((160, 0.0), (80, 1.0)):
        whole = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip_prob": 0.0}
        result = seen(partial(transforms.crop_view, size=size, **whole), image)
        picture = Image.fromarray(image.transpose(1, 2, 0).astype(np.uint8))
        expected = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(result - expected.transpose(2, 0, 1)).mean() <= most


def test_shift_view_pads_by_reflection_and_paints_the_mean() -> None:
    image = smooth_image(32, 32)
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    places = set()
    for seed in range(40):
        view = seen(transforms.shift_view, image, seed)
        hits = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (1, -1)
            if np.array_equal(padded[:, top : top + 32, left : left + 32][:, :, ::flip], view)
        ]
        assert len(hits) == 1
        places.add(hits[0][:1] + hits[0][2:])
    assert len(places) > 10  # both flips, many places
    view = seen(transforms.VMF_CIFAR10, image, 1)
    scaled = pixels.CIFAR10()(torch.from_numpy(view)[None])[0][0]
    zeros = (scaled.abs() < 1e-6).all(0)
    rows, columns = zeros.nonzero(as_tuple=True)
    assert int(zeros.sum()) == 64  # one square of 8 x 8
    assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (7, 7)


def test_warp_view_without_changes_is_the_image() -> None:
    image = smooth_image(20, 24)
    still = partial(transforms.warp_view, degrees=0.0, scale=(1.0, 1.0), shear=0.0, shift=0.0)
    np.testing.assert_allclose(seen(still, image), image, atol=1e-3)
    half = seen(partial(still, scale=(0.4, 0.4), fill=7.0), image)
    assert (half[:, 0] == 7.0).all()


def levels(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("jitter", [(0.0, 0.0, 0.0, 0.0), (0.3, 0.2, 0.1, 0.05)])
def test_crop_view_is_albumentations(channels: int, jitter: tuple[float, ...]) -> None:
    """With the same draws as in version 0.1."""
    if channels == 1 and any(jitter):
        jitter = (0.3, 0.2, 0.0, 0.0)
    factors = [(1 - strength, 1 + strength) for strength in jitter[:3]]
    how = {"interpolation": cv2.INTER_LINEAR, "area_for_downscale": "image", "p": 1.0}
    how |= {"scale": (0.1, 1.0), "ratio": (0.75, 4 / 3)}
    steps: list[Any] = [albumentations.RandomResizedCrop((32, 32), **how)]
    if any(jitter):
        steps.insert(0, albumentations.ColorJitter(*factors, hue=(-jitter[3], jitter[3]), p=1.0))
    compose = albumentations.Compose(steps)
    names = ("brightness", "contrast", "saturation", "hue")
    colours = dict(zip(names, jitter, strict=True))
    view = partial(transforms.crop_view, size=32, scale=(0.1, 1.0), **colours)
    for seed in range(15):
        image = levels(seed, 40 + 7 * seed, 90 - 3 * seed)[:channels]
        rng = np.random.default_rng(seed)
        compose.set_random_state(rng, random.Random(int(rng.integers(2**62))))
        expected = as_channels(compose(image=image.transpose(1, 2, 0))["image"])
        expected = expected[:, :, ::-1] if rng.random() < 0.5 else expected
        np.testing.assert_array_equal(seen(view, image, seed), expected)


def test_read_gives_the_same_levels_in_both_types(tmp_path: Path) -> None:
    levels = smooth_image(80, 120).transpose(1, 2, 0).astype(np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.jpg")
    item = Item("a", tmp_path / "a.jpg")
    for settings in ({}, {"short_edge": 40, "crop": 32}, {"grey": True}, {"size": (30, 20)}):
        ours, floats = read(item, dtype="uint8", **settings), read(item, **settings)
        assert (ours.dtype, floats.dtype) == (np.uint8, np.float32)
        assert ours.flags.writeable
        np.testing.assert_array_equal(ours, floats)


SHAPES = st.tuples(st.sampled_from((1, 3)), st.integers(1, 5), st.integers(1, 5))


@given(arrays.arrays(np.float32, SHAPES, elements=st.floats(-300, 600, width=32)))
def test_to_pixels(image: np.ndarray) -> None:
    expected = np.clip(np.rint(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    np.testing.assert_array_equal(to_pixels(image), expected)
    np.testing.assert_array_equal(to_pixels(image[:, :, ::-1]), expected[:, ::-1])
