"""Score a list of trials, given as files or as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

from eval.formats import embeddings as stored
from eval.formats.trials import read_trials
from eval.scoring import Scored, Scoring
from eval.scoring import score as score_values
from eval.templates import read_enrolment
from eval.types import Embeddings, Trials

File = str | PathLike[str]


def score(
    trials: File | Trials,
    embeddings: File | Embeddings,
    scoring: Scoring | None = None,
    *,
    probe: File | Embeddings | None = None,
    models: File | Mapping[str, Sequence[str]] | None = None,
) -> Scored:
    """Score a list of trials.

    Args:
        trials: P pairs of ids, as a trial list file or as Trials.
        embeddings: a file of embeddings, or what `Model.embed` gives.
        scoring: similarity, score normalisation, PLDA and calibration. By default the similarity
            that the embeddings name.
        probe: embeddings of the probe side, where they are apart.
        models: the items that enrol each model, as a file of `model item item ...` lines or as a
            mapping. The enrolment ids of the trials are then models.

    Returns:
        The scores (P,), higher for more similar pairs, with their trials.

    Raises:
        FileNotFoundError: a file does not exist.
        KeyError: ids have no embedding; all are counted.
        ValueError: a file is of another kind, or two inputs contradict each other.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> scores = likeness.score("trials.txt", embeddings)
        >>> len(scores), scores.system.partition(",")[0]
        (28, 'cosine')
    """
    return score_values(
        trials if isinstance(trials, Trials) else read_trials(trials),
        _embeddings(embeddings),
        Scoring() if scoring is None else scoring,
        probe=None if probe is None else _embeddings(probe),
        models=models if models is None or isinstance(models, Mapping) else read_enrolment(models),
    )


def _embeddings(embeddings: File | Embeddings) -> Embeddings:
    return embeddings if isinstance(embeddings, Embeddings) else stored.read(embeddings)
