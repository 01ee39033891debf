"""Where the fields of a version 0.1 recipe are now, for command lines, files and run folders that
still name them as version 0.1 did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eval.errors import LikenessError
from toolkit.models.parts import RENAMED, renamed, without_revisions

# The recipe of version 0.1 had one level of fields.
MOVED = {
    "precision": "compute.precision",
    "channels_last": "compute.channels_last",
    "compile": "compute.compile",
    "deterministic": "compute.deterministic",
    "accumulate": "compute.accumulate",
    "workers": "compute.workers",
    "prefetch": "compute.prefetch",
    "threads": "compute.threads",
    "cache": "compute.cache",
    "sync_batch_norm": "parallel.sync_batch_norm",
    "shard_proxies": "parallel.spread_classes",
    "proxy_rate": "parallel.class_rate",
    "trials": "measure.trials",
    "test": "measure",
    "validation": "measure.validation",
    "metrics": "measure.metrics",
}
GROUPS = ("schedule", "tuning", "compute", "parallel", "measure")  # whose fields are told apart
_OLD_NAMES = {new: old for old, new in RENAMED.items()}
_VALUES = {
    "trials": "measure=Verification(trials=..., metrics=...)",
    "test": "measure=Classification(items=..., metrics=...) or measure=Retrieval(...)",
    "validation": "measure=Classification(..., validation=Classification(items=...))",
    "metrics": "measure=Verification(trials=..., metrics=...)",
}


def place(field: str) -> str:
    """Where a field is now, by its dotted name of version 0.1 or of this version.

    >>> place("workers"), place("trials.fold"), place("optim.lr")
    ('compute.workers', 'measure.trials.fold', 'optim.lr')
    """
    head, dot, rest = field.partition(".")
    return f"{MOVED.get(head, head)}{dot}{rest}"


def flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's description as two are compared: with the fields of GROUPS one by one,
    {"schedule.steps": 100, ...}, and without what `without_revisions` leaves out.
    """
    description = without_revisions(dict(description))
    whole = {name: value for name, value in description.items() if name not in GROUPS}
    return whole | {
        f"{group}.{name}": value
        for group in GROUPS
        for name, value in (description.get(group) or {}).items()
    }


def refuse_flat(names: Iterable[str]) -> None:
    """Refuse the keywords that a recipe of version 0.1 took, and name their new places.

    Raises:
        LikenessError: One of the names is a field that has moved.
    """
    moved = [name for name in names if name in MOVED]
    if moved:
        group, _, field = MOVED[moved[0]].partition(".")
        value = _VALUES.get(moved[0]) or f"{group}={group.capitalize()}({field}=...)"
        raise LikenessError(
            f"{len(moved)} fields of this recipe have moved since version 0.1 "
            f"({', '.join(moved)}): {moved[0]} is now {MOVED[moved[0]]}; write {value}"
        )


def regrouped(description: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's description as this version writes it, of one that version 0.1 may have written.

    Args:
        description: What `describe` made of a recipe, read from a file.
        defaults: What `describe` makes of each class that measures, by its name and with nothing
            but defaults.

    Returns:
        The description with modules and fields in their present places.
    """
    stored: dict[str, Any] = renamed(dict(description))
    if "compute" in stored or "modality" not in stored:
        return stored
    grouped: dict[str, Any] = {key: value for key, value in stored.items() if key not in MOVED}
    grouped |= {"compute": {}, "parallel": {}}
    for old, new in MOVED.items():
        group, _, field = new.partition(".")
        if group != "measure" and old in stored:
            grouped[group][field] = stored[old]
    return grouped | {"measure": _measure(stored, defaults)}


def _measure(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """The measure of a recipe of version 0.1: its trials, or its test and validation."""
    if stored.get("trials") is not None:
        return {"trials": stored["trials"], "metrics": stored["metrics"]}
    tested = stored.get("test") or stored.get("validation")
    if tested is None:
        return None
    measure = _settings(tested, defaults) | {"metrics": stored["metrics"]}
    if stored.get("test") is not None and stored.get("validation") is not None:
        measure["validation"] = _settings(stored["validation"], defaults)
    return measure


def _settings(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a test, a function with arguments in version 0.1."""
    kind = str(part["call"]).rpartition(".")[2].capitalize()
    return {**defaults.get(kind, {}), **part["args"]}


def as_version_0_1(description: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's description as version 0.1 wrote it: the inverse of `regrouped`.

    Version 0.1 kept digests of descriptions beside what it had searched and compared. They are
    computed again from this. A test in version 0.1 named the arguments that its recipe gave; here
    these are taken to be the ones that differ from the defaults.

    Args:
        description: What `describe` made of a recipe.
        defaults: As for `regrouped`.
    """
    inner = ("tuning", "compute", "parallel", "measure")  # the first did not exist
    whole = {name: value for name, value in description.items() if name not in inner}
    for name, place_now in MOVED.items():
        group, _, field = place_now.partition(".")
        if group != "measure":
            whole[name] = description[group][field]
    measure = description["measure"] or {}
    whole |= {
        "trials": measure.get("trials"),
        "test": as_test(measure, defaults),
        "validation": as_test(measure.get("validation") or {}, defaults),
        "metrics": measure.get("metrics", {}),
    }
    old: dict[str, Any] = renamed(whole, _OLD_NAMES)
    return old


def as_test(measure: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """The test of version 0.1, a function with arguments, that a measure of items was.

    None for a measure of trials, or none. Arguments as in `as_version_0_1`.
    """
    if "items" not in measure:
        return None
    kind = "Retrieval" if "ks" in measure else "Classification"
    arguments = {
        name: value
        for name, value in measure.items()
        if name not in ("metrics", "validation")
        and (name not in defaults[kind] or value != defaults[kind][name])
    }
    test = {"call": f"toolkit.training.measure.{kind.lower()}", "args": arguments}
    old: dict[str, Any] = renamed(test, _OLD_NAMES)
    return old
