"""The IJB-B and IJB-C protocols, 1:1 and 1:N, from face features: every switch named, and the
field's variants as presets.

"IJB-C TAR@FAR=1e-4" is not one protocol. Tools differ in how they join the two flipped views,
whether the feature's norm is kept, whether the detector's score weights a face, how media and
templates are pooled, whether templates are scaled to length 1, and in the rules that read TAR and
TPIR from the scores; their names clash too (N1 of insightface's ijb_evals.py is N0 of its
ijb_11.py). `Switches` says all of it, stands in every result, and `PRESETS` holds the tools' own
(their code, tabulated in docs/reference/protocols.md). The meta files are read by
likeness.eval.protocols.ijb.meta_files.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, Labelled
from likeness.eval.metrics.identification import Protocol
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.metrics.similarity import pairs as score_pairs
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.metrics.verification import TarRule
from likeness.eval.progress import step
from likeness.eval.protocols.identification import IdentificationSettings, identify_labelled
from likeness.eval.protocols.ijb.meta_files import Faces, Side
from likeness.eval.protocols.searching import SearchEvaluation
from likeness.eval.results import Conventions, Result
from likeness.eval.scoring.templates import Method, pool
from likeness.eval.types import Floats, Floats32, Ints, Scores, Trials, check_choice

Flip = Literal["sum", "mean", "none", "included"]
MediaPooling = Literal["mean", "none"]
TemplatePooling = Literal["sum", "mean"]

FARS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

_CELLS = 1 << 20


@dataclass(frozen=True)
class Switches:
    """Everything between face features and a number.

    The defaults are those of docs/reference/protocols.md. The letters F, N and D are insightface's.

    Attributes:
        flip: F. The "sum" or the "mean" of the features of the image and of its mirror image;
            "none" is the image alone, and "included" the features as they are, which hold both.
        keep_norm: N. False scales each face's feature (both views joined) to length 1.
        detector_score: D. True multiplies each face's feature by the detector's score.
        media: The "mean" over the faces of a template that share a medium; with "none" each face is
            a medium of its own.
        template: The "sum" or the "mean" over the media of a template.
        final_norm: Whether templates are scaled to length 1.
        similarity: A name of likeness.eval.metrics.similarity.
        tar_rule: See likeness.eval.metrics.verification.tar_at_far.
        tpir_protocol: See likeness.eval.metrics.identification.RULES.

    Raises:
        LikenessError: A switch does not have such a value.
    """

    flip: Flip = "sum"
    keep_norm: bool = True
    detector_score: bool = True
    media: MediaPooling = "mean"
    template: TemplatePooling = "sum"
    final_norm: bool = True
    similarity: str = "dot"
    tar_rule: TarRule = "strict"
    tpir_protocol: Protocol = "open"

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Switches).items():
            choices = (True, False) if hint is bool else get_args(hint)
            if choices:
                check_choice(f"switch {name}", getattr(self, name), choices)
        check_similarity(self.similarity)


_INSIGHTFACE = Switches(tar_rule="nearest", tpir_protocol="closed")
_OPENSPHERE = replace(
    _INSIGHTFACE, detector_score=False, flip="mean", template="mean", tar_rule="interpolated"
)

# A preset's name is the tool's file or project. OpenSphere's heads wrap each view before it is
# pooled (SimPLE: softplus magnitude): give wrapped features.
PRESETS: dict[str, Switches] = {
    "likeness": Switches(),
    "insightface": _INSIGHTFACE,  # ijb_11.py, eval_ijbc.py, onnx_ijbc.py and ijb_1n.py: "N1D1F2"
    # its default, "N0D1F1"
    "insightface_ijb_evals": replace(_INSIGHTFACE, tpir_protocol="ijb_evals"),
    # validate_IJB_BC.py: norm-weighted sum of the views = sum of the raw features
    "adaface": replace(_INSIGHTFACE, detector_score=False),
    "cvlface_n1d1": _INSIGHTFACE,
    "cvlface_n1d0": replace(_INSIGHTFACE, detector_score=False),
    "cvlface_n0d1": replace(_INSIGHTFACE, keep_norm=False),
    "tface": replace(_INSIGHTFACE, flip="none", keep_norm=False),
    "opensphere": _OPENSPHERE,  # cosine heads
    "opensphere_simple": replace(_OPENSPHERE, final_norm=False, similarity="simple:0.3"),
}


def switches_of(name: str, changes: Sequence[str] = ()) -> Switches:
    """The switches of a tool with changes as on the command line: switches_of("insightface",
    ["keep_norm=false"]).

    Raises:
        LikenessError: The preset or a switch is unknown, or a switch does not have the value; it
            names what there is.

    >>> switches_of("insightface", ["detector_score=false"]) == PRESETS["adaface"]
    True
    """
    check_choice("preset", name, PRESETS)
    known = [field.name for field in fields(Switches)]
    values: dict[str, Any] = {}
    for text in changes:
        key, _, value = text.partition("=")
        check_choice("--switch", key, known)
        values[key] = {"true": True, "false": False}.get(value, value)
    return replace(PRESETS[name], **values)


@step("pooling templates")
def templates(
    features: Embeddings,
    faces: Faces,
    switches: Switches,
    *,
    detector_scores: ArrayLike | None = None,
) -> Embeddings:
    """Pools face features into templates; their ids are the template numbers as text.

    features: raw features, ids = faces.names (more ids are fine). Their meta["flip"] says which
    views `likeness embed --flip` joined: concat serves every switch, sum and mean each other's.
    detector_scores: (F,) in the order of `faces`.

    Raises:
        LikenessError: The switches need other features than these, or there is not one detector
            score for each face where they are needed; or faces have no feature.
    """
    parts, factor = _views(features, switches.flip)
    assert not switches.detector_score or detector_scores is not None, "no detector scores"
    all_there = features.ids == faces.names
    rows = np.arange(len(faces.names)) if all_there else features.rows(faces.names)
    weights = np.full(len(faces.names), factor)
    if switches.detector_score:
        weights = weights * np.asarray(detector_scores, dtype=np.float64)
    if not switches.keep_norm:
        norms = factor * _norms(features.matrix, rows, parts)
        weights = np.divide(weights, norms, out=np.zeros_like(weights), where=norms > 0)
    medium = faces.medium if switches.media == "mean" else np.arange(len(faces.names))
    method: Method = "ijb" if switches.template == "sum" else "ijb_mean"
    # pooling is linear in the features, so that views side by side are pooled as they lie: no
    # further array of F rows
    pooled = pool(features, faces.template, medium, items=rows, method=method, weights=weights)
    matrix = np.asarray(sum(pooled.matrix[:, part] for part in parts))
    joined = Embeddings(pooled.ids, matrix, features.meta)
    return Embeddings(joined.ids, joined.unit(), joined.meta) if switches.final_norm else joined


def _views(features: Embeddings, flip: Flip) -> tuple[list[slice], float]:
    """Which columns of the features to add up, and the factor that makes of the sum what `flip`
    says.
    """
    stored, dim = features.meta.get("flip", "none"), features.matrix.shape[1]
    if stored == "concat" and flip != "included":
        halves = [slice(dim // 2), slice(dim // 2, dim)]
        return halves[: 1 if flip == "none" else 2], 0.5 if flip == "mean" else 1.0
    if flip in ("included", stored) or {flip, stored} == {"sum", "mean"}:
        factor = {("sum", "mean"): 0.5, ("mean", "sum"): 2.0}.get((stored, flip), 1.0)
        return [slice(None)], factor
    problem = f"switch flip = {flip!r} does not go with the flip {stored!r} of these features"
    raise LikenessError(f"{problem}; embed by `embed --flip concat`")


@step("measuring 1:1")
def verification_1_1(
    system: str,
    pooled: Embeddings,
    pairs: Trials,
    switches: Switches,
    *,
    fars: Sequence[float] = FARS,
    subjects: ArrayLike | None = None,
    num_resamples: int = 0,
) -> list[Result]:
    """EER and TAR at each FAR of the template pairs, by the switches' rule.

    pooled: from `templates`. pairs: from `meta_files.read_template_pairs`.
    subjects: (P, 2) integers for intervals over subjects (num_resamples draws; the pairs file names
    no subjects, the 1:N lists do); None with num_resamples > 0: over trials, marked as optimistic.
    Errors: those of likeness.eval.metrics.verification.
    """
    assert pairs.target is not None
    settings = VerificationSettings(
        p_targets=(), fars=fars, tar_rule=switches.tar_rule, num_resamples=num_resamples
    )
    source = "given" if subjects is not None else "unknown: the pairs name templates"
    x, rows = _those_of(pooled, pairs.enrol_ids)
    y, columns = _those_of(pooled, pairs.probe_ids)
    values = score_pairs(x, y, rows[pairs.enrol], columns[pairs.probe], switches.similarity)
    results, _ = measure_system(
        Scores(values, pairs.target),
        settings,
        subjects=subjects,
        subjects_from=source,
        system=system,
        protocol="IJB 1:1",
    )
    return [
        replace(result, conventions={**result.conventions, **_record(switches)})
        for result in results
    ]


def _those_of(pooled: Embeddings, ids: Sequence[str]) -> tuple[Floats32, Ints]:
    """The templates of these ids, in the order in which they were pooled, and the row of each id.

    Where they are all there are, the matrix is the same object: numpy then takes the symmetric
    product. IJB-C has 15.7 million pairs, so that what they do not need is left out before.
    """
    known, rows = np.unique(pooled.rows(ids), return_inverse=True)
    matrix = pooled.matrix if known.size == len(pooled) else pooled.matrix[known]
    return matrix, rows.astype(np.int32)


@step("measuring 1:N")
def identification_1_n(
    system: str,
    pooled: Embeddings,
    galleries: Sequence[Side],
    probes: Side,
    switches: Switches,
    settings: IdentificationSettings,
) -> SearchEvaluation:
    """Rank-k and TPIR@FPIR of the probe templates in the galleries (G1 and G2), by the protocol of
    the switches: open ones keep the galleries apart, closed merges.

    Args:
        system: Its name, as shown in tables.
        pooled: From `templates`.
        galleries: From `likeness.eval.protocols.ijb.meta_files.read_side`; so are the probes.
        switches: Similarity and protocol, which take the place of those of the settings.
        settings: What is measured. Intervals are over the subjects of the probes.

    Raises:
        LikenessError: `pooled` lacks templates.
    """
    return identify_labelled(
        [Labelled(_chosen(pooled, side), side.subject) for side in galleries],
        Labelled(_chosen(pooled, probes), probes.subject),
        replace(settings, similarity=switches.similarity, protocol=switches.tpir_protocol),
        system=system,
        conventions=_record(switches) | {"subjects_from": "1:N lists"},
    )


def _record(switches: Switches) -> Conventions:
    """Every switch, and insightface's short form (of ijb_11.py) of the first three."""
    flip = 0 if switches.flip == "none" else 2
    letters = f"N{int(switches.keep_norm)}D{int(switches.detector_score)}F{flip}"
    return {
        "preset": next((name for name, preset in PRESETS.items() if preset == switches), "custom"),
        "switches": letters,
    } | asdict(switches)


def _chosen(pooled: Embeddings, side: Side) -> Embeddings:
    ids = tuple(map(str, side.template.tolist()))
    return Embeddings(ids, pooled.matrix[pooled.rows(ids)], pooled.meta)


def _norms(matrix: Floats32, rows: NDArray[np.int64], parts: Sequence[slice]) -> Floats:
    """(F,) norms of the sum of some columns of the rows; in blocks."""
    norms = np.empty(rows.size)
    step = max(1, _CELLS // matrix.shape[1])
    for start in range(0, norms.size, step):
        block = slice(start, start + step)
        added = sum(matrix[rows[block], part] for part in parts)
        norms[block] = np.sqrt(np.einsum("fd,fd->f", added, added, dtype=np.float64))
    return norms
