"""Trials as triples (enrol, probe, label), which tests can read."""

from likeness.eval.types import Trials

Triple = tuple[str, str, bool | None]
PLAIN: list[Triple] = [("a", "x", True), ("a", "y", False), ("b", "x", False)]


def rows(trials: Trials) -> list[Triple]:
    labels = [None] * len(trials) if trials.target is None else trials.target.tolist()
    return [
        (trials.enrol_ids[e], trials.probe_ids[p], label)
        for e, p, label in zip(trials.enrol, trials.probe, labels, strict=True)
    ]


def made(triples: list[Triple]) -> Trials:
    enrol, probe, labels = zip(*triples, strict=True)
    enrol_ids, probe_ids = tuple(dict.fromkeys(enrol)), tuple(dict.fromkeys(probe))
    return Trials(
        enrol_ids,
        probe_ids,
        list(map(enrol_ids.index, enrol)),  # type: ignore[arg-type]
        list(map(probe_ids.index, probe)),  # type: ignore[arg-type]
        None if labels[0] is None else labels,  # type: ignore[arg-type]
    )
