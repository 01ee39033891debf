"""docs/how-to/networks.md is what docs/networks.toml says, and messages about models lead to it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from likeness.eval.errors import LikenessError
from likeness.models.bundled import FINDING_MODELS, model_for, resolve_model
from likeness.models.load import load_named
from tests.scripts import loaded, printed

ROOT = Path(__file__).parents[1]
NETWORKS: list[dict[str, str]] = tomllib.loads(
    (ROOT / "docs" / "networks.toml").read_text(encoding="utf-8")
)["network"]


def test_the_page_is_what_the_table_says() -> None:
    maker = loaded(ROOT / "docs" / "make_networks.py")
    page = (ROOT / "docs" / "how-to" / "networks.md").read_text(encoding="utf-8")
    assert page == maker.page(), "run python docs/make_networks.py"


def test_every_network_states_everything_and_an_address_of_its_project() -> None:
    keys = {"name", "takes", "model", "fetch", "size", "code", "weights", "data"}
    keys |= {"published", "source", "tried"}
    kinds = (
        r"(likeness|wespeaker|speechbrain|redimnet|insightface|hub):\S+( --frontend \w+)?|own\.py"
        r"|~/\.likeness/\S+\.onnx"
    )
    for network in NETWORKS:
        assert set(network) == keys, network["name"]
        assert all(network.values()), network["name"]
        assert re.fullmatch(kinds, network["model"]), network["model"]
        assert network["source"].startswith("https://") or (ROOT / network["source"]).exists()
    assert len({network["name"] for network in NETWORKS}) == len(NETWORKS)
    page = (ROOT / "docs" / "how-to" / "networks.md").read_text(encoding="utf-8")
    assert not re.search(r"pypi|pythonhosted", page)


def test_the_help_of_verify_names_the_page() -> None:
    text = " ".join(printed("verify", "--help").split())
    assert "docs/how-to/networks.md" in text
    assert "likeness prepare" in text


MISSING: dict[str, Callable[[], Any]] = {
    "a run": lambda: load_named("runs/nothing"),
    "another kind": lambda: load_named("nemo:titanet"),
    "wespeaker": lambda: load_named("wespeaker:nothing.pt"),
    "redimnet": lambda: load_named("redimnet:nothing.pt"),
    "insightface": lambda: load_named("insightface:nothing"),
    "hub": lambda: load_named("hub:nothing"),
    "unispeech": lambda: load_named("hub:nothing.pth"),
    "included": lambda: resolve_model("likeness:nothing"),
    "neither sound nor picture": lambda: model_for(["a.txt"]),
}


@pytest.mark.parametrize("case", MISSING)
def test_errors_about_a_missing_model_name_the_page(case: str) -> None:
    with pytest.raises(LikenessError) as caught:
        MISSING[case]()
    assert str(caught.value).endswith(FINDING_MODELS)
    assert (ROOT / FINDING_MODELS.split()[0]).is_file()
