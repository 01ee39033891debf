"""Which form of an item is read, and that batches of uint8 hold the same values as of float32."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from likeness.data import Item, audio, images
from likeness.modalities.face import augment as face_augment
from likeness.modalities.face import images as face_images
from likeness.modalities.image import transforms
from likeness.modalities.speaker import augment as speaker_augment
from likeness.toolkit.data.batch import Draw, View, Views, collate_views
from likeness.toolkit.data.reading import Array, Bad, Unreadable, with_settings_of

LEVELS = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8), dtype=np.uint8)


def settings_of(read: Callable[..., Any]) -> dict[str, Any]:
    return read.keywords if isinstance(read, partial) else {}


@pytest.mark.parametrize(
    ("read", "augment", "asked"),
    [
        (images.read, None, {"dtype": "uint8"}),
        (images.read, transforms.VMF_CUB, {"dtype": "uint8"}),
        (images.read, transforms.VMF_CIFAR10, {"dtype": "uint8"}),
        (images.read, transforms.warp_view, {"dtype": "uint8"}),
        (face_images.read, face_augment.ADAFACE_VIEW, {"dtype": "uint8"}),
        (face_images.read, face_augment.geometric_view, {"dtype": "uint8"}),
        (audio.read, None, {}),
        (audio.read, speaker_augment.WESPEAKER_VIEW, {}),
        (images.read, lambda image, rng, batch_rng: image, {}),  # a recipe's own
        (str, None, {}),  # a callable without a signature
    ],
)
def test_the_augmentation_decides_about_the_form(read, augment, asked):
    assert settings_of(with_settings_of(read, augment)) == asked


def test_what_a_recipe_states_stays():
    read = partial(images.read, short_edge=9, dtype="float32")
    assert with_settings_of(read, transforms.VMF_CUB) is read
    wanted = {"short_edge": 9, "dtype": "uint8"}
    assert settings_of(with_settings_of(partial(images.read, short_edge=9))) == wanted


def test_a_batch_of_both_types_is_float32_and_uint8_is_padded_with_zeros():
    first = View(LEVELS[0], 0, 0)
    batch, _ = collate_views([first, View(LEVELS[1].astype(np.float32) + 0.5, 1, 1)])
    mixed = batch.inputs
    assert mixed.dtype == torch.float32
    np.testing.assert_array_equal(mixed[1], LEVELS[1] + 0.5)
    padded, _ = collate_views([first, View(LEVELS[1][..., :5], 1, 1)])
    assert padded.inputs.dtype == torch.uint8
    assert not padded.inputs[1, ..., 5:].any()
    assert padded.lengths.tolist() == [1.0, 0.625]


def test_an_item_that_its_view_cannot_decode_is_bad_and_a_wrong_setting_is_an_error():
    def refuse(error: type[Exception]) -> Views:
        def augment(image: Array, rng: object, batch_rng: object) -> Array:
            raise error("cut short")

        items = [Item("a", Path("a"))]
        return Views(items, np.zeros(1, np.int64), lambda item: LEVELS[0], augment, seed=0)

    assert refuse(Unreadable)[Draw(0, 0, 0)] == Bad("a", "cut short")
    with pytest.raises(ValueError, match="cut short"):
        refuse(ValueError)[Draw(0, 0, 0)]


def test_views_of_a_step_share_the_draws_of_its_batch_and_are_the_same_from_memory():
    read: list[str] = []

    def numbers(item: Item) -> Array:
        read.append(item.id)
        return np.full(2, ord(item.id), np.float32)

    def drawn(value: Array, rng: np.random.Generator, batch_rng: np.random.Generator) -> np.ndarray:
        # an odd number of 32-bit draws leaves half of one in the generator
        return np.array([value[0], batch_rng.integers(9, dtype=np.int32), rng.random()])

    items = [Item("a", Path("a")), Item("b", Path("b"))]
    draws = [Draw(0, 3, 0), Draw(1, 3, 1), Draw(0, 4, 0), Draw(1, 3, 1)]
    expected = []
    for item, step, position in draws:
        of_batch = np.random.default_rng((7, step)).integers(9, dtype=np.int32)
        own = np.random.default_rng((7, step, position)).random()
        expected.append([ord(items[item].id), of_batch, own])
    for cache in (False, True):
        views = Views(items, np.zeros(2, np.int64), numbers, drawn, seed=7, cache=cache)
        assert [views[draw].input.tolist() for draw in draws] == expected
    assert read == ["a", "b", "a", "b", "a", "b"]


def test_a_batch_is_in_the_order_of_its_axes_whatever_that_of_its_images():
    images = [View(level.transpose(1, 2, 0).copy().transpose(2, 0, 1), 0, 0) for level in LEVELS]
    batch, _ = collate_views(images)
    assert batch.inputs.is_contiguous()
    np.testing.assert_array_equal(batch.inputs, LEVELS)
