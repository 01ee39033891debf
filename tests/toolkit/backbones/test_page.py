"""docs/reference/backbones.md is what the classes say, and names them all."""

from __future__ import annotations

import re
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import toolkit.backbones
from tests.scripts import loaded

ROOT = Path(__file__).parents[3]


@cache
def generator() -> ModuleType:
    return loaded(ROOT / "docs" / "make_backbones.py")


def test_backbones_page_is_what_the_classes_say() -> None:
    written = (ROOT / "docs" / "reference" / "backbones.md").read_text(encoding="utf-8")
    assert written == generator().page(), (
        "docs/reference/backbones.md is out of date; run: python docs/make_backbones.py"
    )


def test_counts_are_the_field_s_and_no_backbone_is_left_out() -> None:
    module = generator()
    for row in module.ROWS:
        if result := re.match(r"[\d.]+", row.field):
            # the field rounds down as often as to the nearest
            assert abs(module.size(row.make) / 1e6 - float(result[0])) < 0.0101, row.name
    named = {row.make.func if isinstance(row.make, partial) else row.make for row in module.ROWS}
    named |= {row.cls for row in module.HUB}
    room = Path(next(iter(toolkit.backbones.__path__)))
    files = {".".join(path.relative_to(room).with_suffix("").parts) for path in room.rglob("*.py")}
    files -= {
        "__init__",
        "beside",
        "external",
        "given",
        "head",
        "hub.__init__",
        "hub.families",
        "hub.network",
        "images",
        "layer_pooling",
        "pickled",
        "pooling",
        "redimension",
        "score_norm",
        "torchaudio_cpu",
        "weights",
    }
    assert {cls.__module__.removeprefix("toolkit.backbones.") for cls in named} == files
