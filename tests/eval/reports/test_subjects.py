"""Errors by subject, against a loop over the trials."""

from __future__ import annotations

import numpy as np

from likeness.eval.reports.subjects import errors_by_subject, who_errs
from likeness.eval.types import Scores, Trials


def made(num_subjects: int = 12, num_each: int = 5) -> tuple[Trials, Scores, dict[str, str]]:
    """Enrolment and probe ids of their own; subject 3 is seldom recognised and 4 passes for 5."""
    rng = np.random.default_rng(0)
    enrol, probe = (
        tuple(f"{side}{s}-{i}" for s in range(num_subjects) for i in range(num_each))
        for side in "ep"
    )
    first, second = (each.ravel() for each in np.indices((len(enrol), len(probe))))
    of_first, of_second = first // num_each, second // num_each
    target = of_first == of_second
    values = 3.0 * target + 0.5 * rng.standard_normal(target.size)
    values[target & (of_first == 3)] -= 2.5
    values[(of_first == 5) & (of_second == 4)] += 3
    subject_of = {name: name[1:].split("-")[0] for name in (*enrol, *probe)}
    return Trials(enrol, probe, first, second, target), Scores(values, target), subject_of


def test_errors_by_subject_are_those_of_a_loop() -> None:
    trials, scores, subject_of = made()
    threshold = 1.5
    by_subject = errors_by_subject(trials, scores, subject_of, threshold)
    rejects, accepts = {}, {}
    for i, (a, b) in enumerate(zip(trials.enrol, trials.probe, strict=True)):
        a, b = subject_of[trials.enrol_ids[a]], subject_of[trials.probe_ids[b]]
        accepted = scores.values[i] >= threshold
        if a == b:
            rejects[a] = rejects.get(a, 0) + (not accepted)
        else:
            for side in (a, b):
                accepts[side] = accepts.get(side, 0) + accepted
    names = by_subject.names
    assert [rejects[name] for name in names] == by_subject.false_rejects.tolist()
    assert [accepts[name] for name in names] == by_subject.false_accepts.tolist()
    assert by_subject.num_targets.tolist() == [25] * 12
    assert by_subject.num_nontargets.tolist() == [2 * 5 * 55] * 12


def test_the_page_names_the_pairs_and_escapes_them() -> None:
    trials, scores, subject_of = made()
    hostile = {id: f"</script><b>{name}" for id, name in subject_of.items()}
    text = who_errs(trials, scores, hostile)
    assert "The 100 hardest nontarget trials" in text
    assert "25 of subjects &lt;/script&gt;&lt;b&gt;4 and &lt;/script&gt;&lt;b&gt;5" in text
    assert "<b>" not in text
    assert not who_errs(trials, scores, {})
    assert not who_errs(trials, scores, dict.fromkeys(subject_of, "one"))
