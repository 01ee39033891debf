"""What a description from elsewhere may say: every part with its own defaults is allowed, other
types and sizes are not.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from torch import nn

import modalities.face
import modalities.image
import modalities.speaker
import toolkit.backbones
from likeness.models.parts import restore
from toolkit.models.described import check_arguments


def parts() -> Iterator[Any]:
    for package in (toolkit.backbones, modalities.speaker, modalities.face, modalities.image):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            for name, value in vars(module).items():
                own = getattr(value, "__module__", "") == module.__name__ and not name.startswith(
                    "_"
                )
                if own and (
                    name == "read" or (inspect.isclass(value) and issubclass(value, nn.Module))
                ):
                    yield value


def test_the_defaults_of_every_part_are_allowed() -> None:
    count = 0
    for part in parts():
        defaults = {
            key: parameter.default
            for key, parameter in inspect.signature(part).parameters.items()
            if parameter.default is not parameter.empty
        }
        check_arguments(
            part,
            {key: partial(value) if callable(value) else value for key, value in defaults.items()},
            "part",
        )
        count += len(defaults)
    assert count > 100


@pytest.mark.parametrize(
    "rate",
    [
        1e-300,
        1e9,
        10**9,
        "16000",
        None,
        True,
        0,
        -16_000,
        float("nan"),
        16_000.0,
        [16_000],
        {"a": 1},
    ],
)
@pytest.mark.parametrize("call", ["modalities.speaker.audio.read", "modalities.speaker.long.read"])
def test_a_sampling_rate_is_a_whole_number_that_exists(call: str, rate: object) -> None:
    with pytest.raises(ValueError, match="rate_hz"):
        restore({"call": call, "args": {"rate_hz": rate}}, "read", kind="read", untrusted=True)
    restore({"call": call, "args": {"rate_hz": 8000}}, "read", kind="read", untrusted=True)


@pytest.mark.parametrize(
    ("call", "key", "value"),
    [
        ("modalities.face.images.read", "size", [112]),
        ("modalities.face.images.read", "size", [112, 10**6]),
        ("modalities.face.images.read", "fit", "other"),
        ("modalities.image.images.read", "size", "ab"),
        ("modalities.image.images.read", "grey", 1),
        ("modalities.image.images.read", "short_edge", 10**6),
        ("modalities.image.omniglot.read", "edge", 10**5),
        ("modalities.speaker.long.read", "crops", 10**6),
        ("modalities.speaker.audio.read", "max_seconds", 1e300),
    ],
)
def test_other_types_and_sizes_are_refused(call: str, key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        restore({"call": call, "args": {key: value}}, "read", kind="read", untrusted=True)
