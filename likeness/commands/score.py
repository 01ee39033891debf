"""The files of `likeness score`: embeddings and a trial list become a score file, or a file of the
calibration that is fitted on them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from eval.calibration import Calibration, load_calibration
from eval.formats import embeddings as files
from eval.formats.subjects import read_mapping
from eval.formats.trials import read_trials, write_scores
from eval.plda import Plda, load_plda
from eval.scoring import Scoring, calibrate, score
from eval.templates import read_enrolment
from eval.types import Embeddings, Trials, name_first


def score_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    probe_embeddings: Path | None = None,
    enrolment: Path | None = None,
    **options: Any,
) -> str:
    """Scores a trial list and writes `enrol probe score [label]`.

    Args:
        trials: The trial list.
        embeddings: Of both sides, or of the enrolment side if `probe_embeddings` has the other.
        out: The score file.
        probe_embeddings: Of the probe side.
        enrolment: `model item item ...` list (`templates.read_enrolment`): the enrolment ids of the
            trials are models, pooled from their items.
        options: As for `read_scoring`.

    Returns:
        What was done, and warnings, as text.

    Raises:
        KeyError, ValueError: As in reading the files, `Scoring` and `score`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        scoring = read_scoring(options)
        listed, enrolled, sides = _read(trials, embeddings, probe_embeddings, enrolment)
        scored = score(listed, enrolled, scoring, **sides)
        write_scores(out, listed, scored.values)
    calibrated = ""
    if scoring.calibration is not None:
        calibrated = f", calibrated at p_target {scoring.calibration.p_target:g}"
    done = f"{len(listed)} trials scored by {scored.system}{calibrated} in {out}"
    return "\n".join([*_texts(caught), done])


def calibrate_files(
    trials: Path,
    embeddings: Path,
    out: Path,
    *,
    probe_embeddings: Path | None = None,
    enrolment: Path | None = None,
    quality: Sequence[str] = (),
    p_target: float = 0.5,
    **options: Any,
) -> str:
    """Fits a calibration on a labelled trial list and writes it as JSON for `score_files`.

    Args:
        out: The file of the calibration.
        quality: Measures of `eval.sides.QUALITY`.
        p_target: The prior of a target trial at which the calibration is to be good.

    The other arguments, what is returned and what is raised are as for `score_files`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        scoring = read_scoring(options)
        listed, enrolled, sides = _read(trials, embeddings, probe_embeddings, enrolment)
        fitted = calibrate(listed, enrolled, scoring, quality=quality, p_target=p_target, **sides)
        fitted.save(out)
    done = (
        f"calibration of {fitted.system} fitted on {len(listed)} trials at p_target {p_target:g} "
        f"in {out}"
    )
    return "\n".join([*_texts(caught), done])


def read_scoring(options: Mapping[str, Any]) -> Scoring:
    """The `Scoring` of these options: its fields by name, with a path where the value is in a file.

    The type of a field says how its file is read, so a new field needs nothing here.
    """
    types = get_type_hints(Scoring)
    return Scoring(
        **{
            name: _reader(types[name])(value) if isinstance(value, Path) else value
            for name, value in options.items()
        }
    )


def read_durations(path: Path) -> dict[str, float]:
    """Reads lines `id seconds` (utt2dur) into {id: seconds}; a header is fine.

    Raises:
        ValueError: Lines whose second field is no number, all counted; and as `read_mapping`.
    """
    listed = read_mapping(path)
    wrong = [name for name, text in listed.items() if not _is_number(text)]
    if wrong == list(listed)[:1] and len(listed) > 1:
        del listed[wrong.pop()]  # the header `id seconds`, which the reader of any list cannot know
    if wrong:
        raise ValueError(
            f"{path}: {len(wrong)} of {len(listed)} durations are no numbers "
            f"({name_first(f'{name} {listed[name]}' for name in wrong)}); expected lines "
            "`id seconds`"
        )
    return {name: float(text) for name, text in listed.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_READERS: dict[Any, Callable[[Path], Any]] = {
    Embeddings: files.read,
    Plda: load_plda,
    Calibration: load_calibration,
    Mapping[str, str]: read_mapping,
    Mapping[str, float]: read_durations,
}


def _reader(kind: Any) -> Callable[[Path], Any]:
    """How a file of this type, which may be joined with None, is read."""
    return next(_READERS[choice] for choice in (kind, *get_args(kind)) if choice in _READERS)


def _read(
    trials: Path, embeddings: Path, probe_embeddings: Path | None, enrolment: Path | None
) -> tuple[Trials, Embeddings, dict[str, Any]]:
    """The trials, the embeddings, and the keywords `probe` and `models` of `score`."""
    return (
        read_trials(trials),
        files.read(embeddings),
        {
            "probe": files.read(probe_embeddings) if probe_embeddings else None,
            "models": read_enrolment(enrolment) if enrolment else None,
        },
    )


def _texts(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    return list(dict.fromkeys(f"warning: {warning.message}" for warning in caught))
