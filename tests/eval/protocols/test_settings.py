"""Settings of the protocols and of scoring refuse numbers out of their range when they are made."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.protocols.retrieval import RetrievalSettings
from likeness.eval.scoring.settings import Scoring

NAN = float("nan")
DRAWS = {"level": [0.0, 1.0, 95.0, NAN], "num_resamples": [-1, 0.5], "seed": [-1]}
# settings -> field -> values that it may not have
WRONG: dict[Callable[..., Any], dict[str, list[Any]]] = {
    VerificationSettings: DRAWS
    | {"fars": [(7,), (NAN,)], "p_targets": [(0.5, 1.0)], "c_miss": [0.0]}
    | {"eer_method": ["hull"], "tar_rule": ["loose"]},
    partial(VerificationSettings, p_targets=()): {"c_fa": [float("inf")]},
    IdentificationSettings: DRAWS
    | {"fpirs": [(1.5,)], "ranks": [(1, 0)]}
    | {"protocol": ["half"], "similarity": ["cosin"]},
    RetrievalSettings: DRAWS | {"ks": [(0,)], "similarity": ["cosin"]},
    Scoring: {"top_n": [1, 2.5], "similarity": [3]},
}


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        (settings, field, value)
        for settings, fields in WRONG.items()
        for field, values in fields.items()
        for value in values
    ],
)
def test_a_value_out_of_its_range_is_refused(settings, field, value):
    with pytest.raises(LikenessError):
        settings(**{field: value})


def test_the_ends_of_a_range_belong_to_it():
    VerificationSettings(fars=(0, 1), p_targets=(), num_resamples=0, level=0.5)
    IdentificationSettings(fpirs=(0.0, 1.0), ranks=(), num_resamples=0)
    RetrievalSettings(ks=(1, 1000))


def test_a_number_alone_is_a_sequence_of_one():
    assert VerificationSettings(fars=0.01).fars == (0.01,)
    assert IdentificationSettings(ranks=5).ranks == RetrievalSettings(ks=5).ks == (5,)
    for settings, name in (
        (VerificationSettings, "fars"),
        (IdentificationSettings, "fpirs"),
        (RetrievalSettings, "ks"),
    ):
        with pytest.raises(LikenessError, match="is no number"):
            settings(**{name: "0.1"})
