"""What a smaller model costs on the user's own trials: EER and TAR before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.protocols.verification import VerificationSettings
from eval.results import aligned, metric_label, metric_text, signed_ends, signed_text
from eval.types import Trials
from likeness.evaluation import evaluate
from likeness.models import onnx as exported
from likeness.scoring import score
from toolkit.data.items import Item
from toolkit.models.embed import embed
from toolkit.models.loaded import Loaded


@dataclass(frozen=True)
class OnTrials:
    """The trials that a smaller model is measured on.

    Attributes:
        trials: P labelled trials.
        items: The items that they name, and perhaps others. Their labels are the subjects.
        name: What the trials are called.
        far: The false-accept rate of the TAR.
        max_loss: How much the EER may rise, in percentage points.
    """

    trials: Trials
    items: Sequence[Item]
    name: str
    far: float = 0.01
    max_loss: float = 0.2


@dataclass(frozen=True)
class Change:
    """A metric before and after.

    Attributes:
        metric: "eer" or "tar_at_far(FAR)".
        before: Of the model in float32, a fraction.
        after: Of the smaller model.
        difference: after - before.
        interval: 95 %, over the same resampled subjects for both models (or over trials, where the
            subjects are not known); None where there is none.
        note: Why there is no interval, or why it is not to be relied on; or "".
    """

    metric: str
    before: float
    after: float
    difference: float
    interval: tuple[float, float] | None
    note: str


@dataclass(frozen=True)
class Cost:
    """What a smaller model costs on some trials.

    Attributes:
        changes: EER first, then TAR.
        trials: What the trials are called.
        num_trials: Their number.
        over: What the intervals are over, "subjects" or "trials".
    """

    changes: tuple[Change, ...]
    trials: str
    num_trials: int
    over: str

    def table(self) -> str:
        """Return the changes as aligned text."""
        head = ["", "float32", "smaller", "difference", f"95 %, paired, over {self.over}"]
        body = [
            [
                metric_label(change.metric),
                metric_text(change.metric, change.before),
                metric_text(change.metric, change.after),
                signed_text(change.metric, change.difference),
                signed_ends(change.metric, change.interval, change.note),
            ]
            for change in self.changes
        ]
        notes = dict.fromkeys(change.note for change in self.changes if change.note)
        return "\n".join([*aligned([head, *body]), *(f"* {note}" for note in notes)])

    def to_json(self) -> dict[str, Any]:
        """Return what the file's description keeps."""
        return asdict(self) | {"date": date.today().isoformat()}


def measure(before: Loaded, file: Path, about: OnTrials) -> Cost:
    """Measure what a smaller model costs, and refuse one that costs too much.

    Args:
        before: The model in float32.
        file: The .onnx file of the smaller model, under whatever name.
        about: The trials, and what they may cost.

    Returns:
        EER and TAR at `about.far` before and after.

    Raises:
        LikenessError: The EER rises by more than `about.max_loss`, the trials have no labels, or
            items of theirs are missing or cannot be read.
    """
    after = exported.load(file)
    assert after is not None
    needed = {*about.trials.enrol_ids, *about.trials.probe_ids}
    items = [item for item in about.items if item.id in needed]
    scores = {
        name: score(about.trials, embed(model.embedder, items, model.read, meta=model.meta)[0])
        for name, model in (("float32", before), ("smaller", after))
    }
    subjects = {item.id: item.label for item in items if item.label is not None}
    settings = VerificationSettings(p_targets=(), fars=(about.far,))
    evaluation = evaluate(
        scores, settings, subjects=subjects if len(subjects) == len(items) else None
    )
    cost = _cost(evaluation.compared, about)
    rise = 100 * cost.changes[0].difference
    if not rise <= about.max_loss:
        raise LikenessError(
            f"the smaller model raises the EER on {about.name} by {rise:.2f} percentage points, "
            f"from {100 * cost.changes[0].before:.2f} to {100 * cost.changes[0].after:.2f} %; at "
            f"most {about.max_loss:g} are allowed: nothing was written; choose another precision, "
            "calibrate it, or allow more by --max-loss"
        )
    return cost


def _cost(compared: Any, about: OnTrials) -> Cost:
    values = {(result.system, result.metric): result.value for result in compared.results}
    changes: list[Change] = []
    for metric in ("eer", *(name for _, name in values if name.startswith("tar"))):
        if any(change.metric == metric for change in changes):
            continue
        first, second = (values[name, metric] for name in ("float32", "smaller"))
        paired = compared.paired.differences.get(("smaller", metric))
        changes.append(
            Change(
                metric,
                first,
                second,
                second - first,
                None if paired is None else paired.interval,
                "" if paired is None else paired.interval_note,
            )
        )
    return Cost(tuple(changes), about.name, len(about.trials), compared.paired.over)
