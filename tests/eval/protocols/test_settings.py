"""Settings of the protocols and of scoring refuse numbers out of their range when they are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.protocols.retrieval import RetrievalSettings
from likeness.eval.protocols.verification import VerificationSettings
from likeness.eval.scoring.settings import Scoring

EVERY = [VerificationSettings, IdentificationSettings, RetrievalSettings]
DRAWS = [
    ({"level": 0.0}, "level"),
    ({"level": 1.0}, "level"),
    ({"level": 95.0}, "level"),
    ({"level": float("nan")}, "level"),
    ({"num_resamples": -1}, "num_resamples"),
    ({"num_resamples": 0.5}, "num_resamples"),
    ({"seed": -1}, "seed"),
]
OWN: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (VerificationSettings, {"fars": (7,)}, "far = 7"),
    (VerificationSettings, {"fars": (float("nan"),)}, "far = nan"),
    (VerificationSettings, {"p_targets": (0.5, 1.0)}, "p_target = 1"),
    (VerificationSettings, {"c_miss": 0.0}, "c_miss"),
    (VerificationSettings, {"p_targets": (), "c_fa": float("inf")}, "c_fa"),
    (VerificationSettings, {"eer_method": "hull"}, "eer_method"),
    (VerificationSettings, {"tar_rule": "loose"}, "tar_rule"),
    (IdentificationSettings, {"fpirs": (1.5,)}, "fpir = 1.5"),
    (IdentificationSettings, {"ranks": (1, 0)}, "ranks: 0"),
    (IdentificationSettings, {"protocol": "half"}, "protocol"),
    (IdentificationSettings, {"similarity": "cosin"}, "similarity"),
    (RetrievalSettings, {"ks": (0,)}, "ks: 0"),
    (RetrievalSettings, {"lone": "keep"}, "lone"),
    (RetrievalSettings, {"similarity": "cosin"}, "similarity"),
    (Scoring, {"top_n": 1}, "top_n: 1"),
    (Scoring, {"top_n": 2.5}, "top_n: 2.5"),
]
OF_ANOTHER_TYPE: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (VerificationSettings, {"fars": 0.01}, "brackets"),
    (VerificationSettings, {"fars": "0.1"}, "sequence"),
    (IdentificationSettings, {"fpirs": 0.1}, "brackets"),
    (IdentificationSettings, {"ranks": 5}, "brackets"),
    (RetrievalSettings, {"ks": 1}, "brackets"),
    (Scoring, {"similarity": 3}, "similarity"),
]


@pytest.mark.parametrize(
    ("settings", "wrong", "keyword"),
    OWN + OF_ANOTHER_TYPE + [(kind, wrong, keyword) for kind in EVERY for wrong, keyword in DRAWS],
)
def test_a_value_out_of_its_range_is_refused(
    settings: Callable[..., Any], wrong: dict[str, Any], keyword: str
) -> None:
    with pytest.raises(ValueError, match=keyword):
        settings(**wrong)


@pytest.mark.parametrize(
    "settings",
    [
        partial(VerificationSettings, fars=(0, 1), p_targets=(), num_resamples=0, level=0.5),
        partial(IdentificationSettings, fpirs=(0.0, 1.0), ranks=(), num_resamples=0),
        partial(RetrievalSettings, ks=(1, 1000)),
        partial(Scoring, top_n=2),
    ],
)
def test_the_ends_of_a_range_belong_to_it(settings: Callable[[], Any]) -> None:
    assert settings() is not None
