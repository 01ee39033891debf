"""FTE, FTA, GFAR and GFRR by counting the trials of the whole list; words of ISO/IEC 19795-1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.metrics.failures import compared_trials, fte_by_group, read_failures
from likeness.eval.types import Trials


def a_list(num_people: int = 8, seed: int = 0) -> tuple[Trials, np.ndarray]:
    """Every first item against every second one, with scores that tie."""
    rng = np.random.default_rng(seed)
    enrol = tuple(f"p{i}/1" for i in range(num_people))
    probe = tuple(f"p{i}/2" for i in range(num_people))
    i, j = (side.ravel() for side in np.indices((num_people, num_people)))
    return Trials(enrol, probe, i, j, i == j), np.round(rng.normal(size=i.size) + 2 * (i == j), 1)


@given(st.integers(0, 100), st.integers(0, 5))
def test_generalised_rates_are_those_of_counting_every_trial(seed, num_failed):
    trials, values = a_list(seed=seed)
    ids = [*trials.enrol_ids, *trials.probe_ids]
    failed = set(np.random.default_rng(seed).choice(ids, num_failed, replace=False).tolist())
    rows = [
        (trials.enrol_ids[i], trials.probe_ids[j], bool(t), v)
        for i, j, t, v in zip(trials.enrol, trials.probe, trials.target, values, strict=True)
    ]
    left, failures = compared_trials(trials, failed)
    scored = likeness.Scored(left, values[~failures.lost], "by hand", None)
    settings = likeness.VerificationSettings(fars=(0.1,), num_resamples=0)
    evaluation = likeness.evaluate(scored, settings, trials=trials, failures=failed)
    found = {r.metric: r for r in evaluation.results}
    threshold = found["tar_at_far(0.1)"].threshold
    limit = np.inf if threshold is None else threshold
    for name, target in (("gfar", False), ("gfrr", True)):
        of = [not {a, b} & failed and v >= limit for a, b, t, v in rows if t == target]
        expected = sum(ok != target for ok in of) / len(of)
        assert found[f"{name}(0.1)"].value == pytest.approx(expected)
    for name, ids in (("fte", trials.enrol_ids), ("fta", trials.probe_ids)):
        assert found[name].value == sum(id in failed for id in ids) / 8


def test_iso_terms_stand_beside_ours(tmp_path):
    trials, values = a_list(30)
    left, failures = compared_trials(trials, {"p3/1", "p4/2"})
    (tmp_path / "skipped.txt").write_text("p3/1\tno face was found\np4/2 too short\n")
    scored = likeness.Scored(left, values[~failures.lost], "by hand", None)
    settings = likeness.VerificationSettings(fars=(0.1,), num_resamples=50, terms="iso")
    lists = {"trials": trials, "failures": tmp_path / "skipped.txt"}
    found = {r.metric: r for r in likeness.evaluate(scored, settings, **lists).results}
    tar, fnmr = found["tar_at_far(0.1)"], found["fnmr_at_fmr(0.1)"]
    assert fnmr.value == 1 - tar.value
    assert fnmr.interval == (1 - tar.interval[1], 1 - tar.interval[0])
    assert found["gfrr(0.1)"].interval[0] < found["gfrr(0.1)"].value
    assert found["fte"].interval[0] < 1 / 30 < found["fte"].interval[1]


def test_identification_has_the_fnir_beside_the_tpir():
    rng = np.random.default_rng(0)
    gallery = likeness.Embeddings(tuple(f"p{i}/1" for i in range(6)), rng.normal(size=(6, 4)))
    probes = likeness.Embeddings(tuple(f"p{i}/2" for i in range(12)), rng.normal(size=(12, 4)))
    settings = likeness.IdentificationSettings(fpirs=(0.5,), num_resamples=0, terms="iso")
    found = {r.metric: r.value for r in likeness.identify(gallery, probes, settings).results}
    assert found["fnir_at_fpir(0.5)"] == 1 - found["tpir_at_fpir(0.5)"]


def test_the_fte_of_a_group_is_the_share_of_its_items():
    trials, _ = a_list()
    group_of = {f"p{i}": "ab"[i % 2] for i in range(8)}
    failures = compared_trials(trials, {"p0/1", "p2/2", "p1/1"})[1]
    settings = likeness.VerificationSettings(num_resamples=20)
    rates = fte_by_group(failures, group_of, {}, settings)
    assert {group: rate.value for group, rate in rates.items()} == {"a": 2 / 8, "b": 1 / 8}


def test_failures_of_other_items_or_without_a_list_are_refused(tmp_path):
    trials, values = a_list()
    with pytest.raises(LikenessError, match="none is in the trials"):
        compared_trials(trials, {"q"})
    scored = likeness.Scored(trials, values, "by hand", None)
    with pytest.raises(LikenessError, match="whole list of trials"):
        likeness.evaluate(scored, failures=["p0/1"])
    (tmp_path / "messy.txt").write_text("# skipped\n\np0/1 no face found\np1/2\n")
    assert read_failures(tmp_path / "messy.txt") == {"p0/1", "p1/2"}


def test_embed_lists_what_it_could_not_read(tmp_path):
    from likeness.embedding.extraction import write
    from likeness.toolkit.data.reading import Bad

    out = tmp_path / "e.npz"
    embedded = likeness.Embeddings(("a",), np.ones((1, 2), np.float32))
    write((embedded, [Bad("b", "no\nface")]), out, {}, skips_bad=True)
    listed = tmp_path / "e.npz.skipped.txt"
    assert listed.read_text() == "b\tno face\n"
    assert read_failures(listed) == {"b"}
    write((embedded, []), out, {}, skips_bad=True)
    assert not listed.exists()
