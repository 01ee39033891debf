"""Training views: deterministic per item, exact where they are exact, near Pillow's where they
resize; and what the front-end makes of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from likeness.modalities.image import transforms
from likeness.toolkit.data import pixels
from likeness.toolkit.data.reading import Floats
from likeness.toolkit.models.parts import describe


def smooth_image(height: int, width: int) -> Floats:
    low = np.random.default_rng(3).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return (
        np.asarray(Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC))
        .transpose(2, 0, 1)
        .astype(np.float32)
    )


VIEWS = {
    "cars": (transforms.VMF_CARS, (256, 256), (224, 224)),
    "cub": (transforms.VMF_CUB, (256, 300), (224, 224)),
    "sop": (transforms.VMF_SOP, (256, 256), (224, 224)),
    "cifar": (transforms.VMF_CIFAR10, (32, 32), (32, 32)),
    "benchmarker": (transforms.BENCHMARKER, (256, 280), (227, 227)),
    "warp": (partial(transforms.warp_view), (28, 30), (28, 30)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_functions_of_their_generator(name: str) -> None:
    view, size, expected = VIEWS[name]
    image = smooth_image(*size)
    kept = image.copy()
    draws = [
        view(image, np.random.default_rng(seed), np.random.default_rng(0)) for seed in (1, 2, 1)
    ]
    np.testing.assert_array_equal(image, kept)
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
        result = transforms.crop_view(
            image,
            np.random.default_rng(0),
            np.random.default_rng(0),
            size=size,
            scale=(1.0, 1.0),
            ratio=(1.0, 1.0),
            flip_prob=0.0,
        )
        expected = np.asarray(
            Image.fromarray(image.transpose(1, 2, 0).astype(np.uint8)).resize(
                (size, size), Image.Resampling.BILINEAR
            )
        ).transpose(2, 0, 1)
        assert np.abs(result - expected).mean() <= most


def test_shift_view_pads_by_reflection_and_paints_the_mean() -> None:
    image = smooth_image(32, 32)
    seen = set()
    for seed in range(40):
        view = transforms.shift_view(image, np.random.default_rng(seed), np.random.default_rng(0))
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
        hits = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (1, -1)
            if np.array_equal(padded[:, top : top + 32, left : left + 32][:, :, ::flip], view)
        ]
        assert len(hits) == 1
        seen.add(hits[0][:1] + hits[0][2:])
    assert len(seen) > 10  # both flips, many places
    view = transforms.VMF_CIFAR10(image, np.random.default_rng(1), np.random.default_rng(0))
    scaled = pixels.CIFAR10()(torch.from_numpy(view)[None])[0][0]
    zeros = (scaled.abs() < 1e-6).all(0)
    rows, columns = zeros.nonzero(as_tuple=True)
    assert int(zeros.sum()) == 64  # one square of 8 x 8
    assert (int(rows.max() - rows.min()), int(columns.max() - columns.min())) == (7, 7)


def test_warp_view_without_changes_is_the_image() -> None:
    image = smooth_image(20, 24)
    still = partial(transforms.warp_view, degrees=0.0, scale=(1.0, 1.0), shear=0.0, shift=0.0)
    np.testing.assert_allclose(
        still(image, np.random.default_rng(0), np.random.default_rng(0)), image, atol=1e-3
    )
    half = transforms.warp_view(
        image,
        np.random.default_rng(0),
        np.random.default_rng(0),
        degrees=0.0,
        scale=(0.4, 0.4),
        shear=0.0,
        shift=0.0,
        fill=7.0,
    )
    assert (half[:, 0] == 7.0).all()


@pytest.mark.slow  # a process that imports albumentations
def test_views_ask_no_network() -> None:
    """albumentations looks for a newer version of itself when imported, unless told not to."""
    source = (
        "import socket, sys, numpy as np\n"
        "def refuse(*_, **__): raise SystemExit('the network was asked')\n"
        "socket.getaddrinfo = socket.create_connection = refuse\n"
        "from likeness.modalities.image.transforms import crop_view\n"
        "crop_view(np.zeros((3, 9, 9), np.float32), np.random.default_rng(0), "
        "np.random.default_rng(0), size=8)\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if name != "NO_ALBUMENTATIONS_UPDATE"
    }
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
