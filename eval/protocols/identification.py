"""1:N identification: probes searched in galleries, rank-k and TPIR@FPIR with their intervals, as
results and as a table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Annotated, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from likeness.eval import results as report
from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import ColumnNames
from likeness.eval.formats.embeddings import Embeddings, Labelled, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.intervals import bootstrap
from likeness.eval.intervals.small_rates import exact_bounds
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.identification import (
    RULES,
    Protocol,
    Searched,
    rank_hits,
    search_embeddings,
    tpir,
)
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.self_matches import name_self_matches, self_matches
from likeness.eval.metrics.similarity import check_similarity
from likeness.eval.metrics.system import NumResamples
from likeness.eval.metrics.verification import check_rate
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.protocols.arguments import files_read
from likeness.eval.protocols.searching import SearchEvaluation
from likeness.eval.results import Conventions, Result, add_bounds
from likeness.eval.types import (
    Bools,
    Floats,
    Pairs,
    check_choice,
    check_counts,
    counted,
    freeze_numbers,
    name_first,
    same_items,
)

_ROUNDS = 100  # how often a draw without mated or non-mated probes is drawn again


@dataclass(frozen=True)
class IdentificationSettings:
    """How probes are searched and what is measured.

    Attributes:
        similarity: As in `likeness.eval.scoring.settings.Scoring`.
        fpirs: A false-positive identification rate of TPIR; there may be several.
        ranks: A K of rank-K; there may be several.
        protocol: With open, the threshold is that of the non-mated probes; closed is the variant of
            SimPLE and OpenSphere. See `likeness.eval.metrics.identification.RULES`.
        terms: With iso, the FNIR stands beside each TPIR, as in ISO/IEC 19795-1.
        level: The share of the resamples that an interval spans.
        num_resamples: Draws of the bootstrap over the subjects of the probes; 0 leaves the
            intervals out.
        seed: The seed of the draws.

    Raises:
        LikenessError: A name is unknown, or a number is outside its range.

    >>> IdentificationSettings(protocol="half")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown protocol 'half'; choose one of open, closed, ijb_evals
    """

    similarity: str | None = None
    fpirs: Annotated[Sequence[float], Option("--fpir")] = (1e-2, 1e-1)
    ranks: Annotated[Sequence[int], Option("--rank")] = (1, 5, 10)
    protocol: Protocol = "open"
    terms: report.Terms = "likeness"
    level: float = 0.95
    num_resamples: NumResamples = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        freeze_numbers(self, "fpirs", "ranks")
        check_choice("protocol", self.protocol, get_args(Protocol))
        check_choice("terms", self.terms, get_args(report.Terms))
        for fpir in self.fpirs:
            check_rate("fpir", fpir)
        check_counts("ranks", self.ranks)
        if self.similarity is not None:
            check_similarity(self.similarity)
        bootstrap.check_draws(self.level, self.num_resamples, self.seed)


class _Measure(NamedTuple):
    """One metric.

    Attributes:
        name: Its name.
        of: Weights of the probes -> value and threshold, which is infinite for none.
        conventions: What the record says of it alone.
        behind: What its interval rests on: the kind of probes with fewer subjects.
    """

    name: str
    of: Callable[[Counts], tuple[float, float]]
    conventions: Conventions
    behind: bootstrap.Drawn


def identify(
    gallery: Annotated[File | Embeddings | Sequence[File | Embeddings], Option(path="file")],
    probes: Annotated[File | Embeddings, Option(path="file")],
    settings: IdentificationSettings | None = None,
    *,
    gallery_subjects: Annotated[Names | None, Option(path="file")] = None,
    probe_subjects: Annotated[Names | None, Option(path="file")] = None,
    columns: ColumnNames = "",
) -> SearchEvaluation:
    """Search every probe in a gallery: rank-K and open-set TPIR@FPIR.

    Args:
        gallery: the embeddings to search in. There may be several galleries apart, such as G1 and
            G2 of IJB: rank-K pools them, open-set TPIR is the mean over them, and the closed
            protocol merges them.
        probes: the embeddings to search for. A probe that is in a gallery, by its id, does not find
            itself, and is left out if nothing else enrols its subject.
        settings: what is measured and by which rule.
        gallery_subjects: lines `id subject` (default: the first folder of the ids). They may be a
            mapping.
        probe_subjects: lines `id subject` (default: the first folder of the ids). They may be a
            mapping.
        columns: as in `likeness.eval.formats.embeddings.read_embeddings`.

    Returns:
        The results; print them to see the table. `.report(folder)` writes a page. TPIR that needs
        non-mated probes where there are none, and ranks beyond the subjects of the gallery, are
        left out with a note.

    Raises:
        LikenessError: a file does not exist. Ids have no subject, no probe has a mate, or the
            embeddings ask for different similarities.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.identify(embeddings, embeddings).results[0].metric
        'rank_k(1)'
    """
    files = files_read(gallery, probes, gallery_subjects, probe_subjects)
    listed = [gallery] if isinstance(gallery, str | PathLike | Embeddings) else gallery
    apart = [embeddings_of(rows, columns) for rows in listed]
    queries = embeddings_of(probes, columns)
    of_gallery, of_probes = names_of(gallery_subjects), names_of(probe_subjects)
    settings = settings or IdentificationSettings()
    similarity = _similarity(settings, [queries, *apart])
    subjects_from = "first path component of the ids" if of_probes is None else "given mapping"
    galleries = [Labelled(rows, labels_of("gallery", rows.ids, of_gallery)) for rows in apart]
    asked = Labelled(queries, labels_of("probe", queries.ids, of_probes))
    itself = [self_matches(asked, of) for of in galleries]
    for of, same in zip(galleries, itself, strict=True):
        name_self_matches(queries, of.embeddings, same)
    conventions: Conventions = {"similarity": similarity, "subjects_from": subjects_from}
    if num_themselves := np.unique(np.concatenate([same[0] for same in itself])).size:
        conventions["self_matches"] = num_themselves
        rows = np.flatnonzero(_searchable(asked, galleries, itself))
        ids = tuple(queries.ids[row] for row in rows.tolist())
        queries = Embeddings(ids, queries.matrix[rows], queries.meta)
        asked = Labelled(queries, [asked.labels[row] for row in rows.tolist()])
        itself = [self_matches(asked, of) for of in galleries]
    evaluation = identify_labelled(
        galleries,
        asked,
        replace(settings, similarity=similarity),
        system="probes",
        conventions=conventions,
        itself=itself,
    )
    return replace(evaluation, files=files)


def _searchable(probes: Labelled, galleries: Sequence[Labelled], itself: Sequence[Pairs]) -> Bools:
    """(Q,) the probes but those whose subject only they themselves enrol.

    Without themselves these would pass for strangers.
    """
    found = np.concatenate([rows for rows, _ in itself])
    labels = np.asarray(probes.labels)
    others = -np.bincount(found, minlength=labels.size)
    for gallery in galleries:
        names, sizes = np.unique(np.asarray(gallery.labels), return_counts=True)
        place = np.minimum(np.searchsorted(names, labels), names.size - 1)
        others += np.where(names[place] == labels, sizes[place], 0)
    is_left: Bools = np.ones(labels.size, dtype=np.bool_)
    is_left[found] = others[found] > 0
    if not is_left.any():
        first = f"first: {probes.embeddings.ids[0]!r}"
        raise LikenessError(
            f"each of {labels.size:,} probes is the only one of its subject in the gallery "
            f"({first}), and an item does not find itself; add others"
        )
    return is_left


@step("measuring")
def identify_labelled(
    galleries: Sequence[Labelled],
    probes: Labelled,
    settings: IdentificationSettings,
    *,
    system: str,
    conventions: Conventions,
    itself: Sequence[Pairs] = (),
) -> SearchEvaluation:
    """`identify` of embeddings whose subjects are known.

    conventions: more for the record; itself: the probes that are in each gallery themselves.
    """
    searched, names = _searched(galleries, probes, settings, itself)
    mated: Counts = np.sum([search.mated for search in searched], axis=0)
    if not mated.any():
        raise LikenessError(f"none of {mated.size} probes has a mate; name subjects alike")
    settings, notes = _possible(searched, settings)
    num_mated = int(np.count_nonzero(mated))
    if without := mated.size - num_mated:
        notes.append(f"rank-k is over the {num_mated:,} probes with a mate; {without:,} have none.")
    subject = np.unique(np.asarray(probes.labels), return_inverse=True)[1]
    counts: dict[str, int | None] = {
        "probes": mated.size,
        "mated_probes": num_mated,
        "gallery_templates": sum(len(name) for name in names),
        "gallery_subjects": len(set().union(*(name.tolist() for name in names))),
        "subjects": int(subject.max()) + 1,
    }
    measures = _measures(searched, mated, subject, settings)
    values = _resample(measures, subject, [search.mated for search in searched], settings)
    templates = "best score over the templates of a subject"
    common: Conventions = {"galleries": len(galleries), "templates": templates, **conventions}
    if settings.num_resamples:
        common["interval"] = "bootstrap over subjects of the probes"
        common |= bootstrap.draws_of(settings)
    kind = "closed set" if settings.protocol == "closed" else "open set"
    protocol = f"identification 1:N, {kind}{', galleries apart' if len(searched) > 1 else ''}"
    results = []
    for measure, drawn in zip(measures, values, strict=True):
        value, limit = measure.of(np.ones_like(mated))
        threshold = limit if np.isfinite(limit) else None
        own = measure.conventions | common
        result = Result(system, measure.name, value, None, threshold, counts, own, protocol)
        if settings.num_resamples:
            interval = bootstrap.bounds(drawn, value, settings.level, measure.behind)
            if interval.ends is None and value == 1:
                interval = exact_bounds(value, settings.level, measure.behind)
            result = add_bounds(result, interval)
        results.append(result)
    if settings.terms == "iso":
        results = report.add_iso_terms(results)
    rules = dict.fromkeys(
        f"TPIR: {result.conventions['rule']}." for result in results if "rule" in result.conventions
    )
    notes = [*rules, *notes]
    return SearchEvaluation(results, notes, probes, galleries, searched, settings.protocol)


def _similarity(settings: IdentificationSettings, sides: Sequence[Embeddings]) -> str:
    """The similarity that the settings name, else the one that all embeddings name."""
    stated = {rows.meta["similarity"] for rows in sides if rows.meta.get("similarity")}
    if settings.similarity is None and len(stated) > 1:
        names = name_first(sorted(stated))
        raise LikenessError(f"the files ask for different similarities ({names}); name one")
    return settings.similarity or next(iter(stated), "cosine")


def _searched(
    galleries: Sequence[Labelled],
    probes: Labelled,
    settings: IdentificationSettings,
    itself: Sequence[Pairs],
) -> tuple[list[Searched], list[NDArray[np.generic]]]:
    """The search in each gallery, and the subjects of each; the closed protocol merges them."""
    rows = [gallery.embeddings.matrix for gallery in galleries]
    names = [np.asarray(gallery.labels) for gallery in galleries]
    keep, pairs = 0, [*itself] or [same_items((), ())] * len(rows)
    if settings.protocol == "closed":
        if len(rows) > 1:
            begin = np.cumsum([0, *map(len, rows)])
            shifted = [found + first for (_, found), first in zip(pairs, begin, strict=False)]
            asked = np.concatenate([of_probes for of_probes, _ in pairs])
            pairs = [(asked, np.concatenate(shifted))]
            rows, names = [np.concatenate(rows)], [np.concatenate(names)]
        num_probes = len(probes.embeddings.ids)
        # More than are needed, because the draws of the bootstrap weigh the probes anew.
        keep = 4 * int(np.ceil(max(settings.fpirs, default=0) * num_probes)) + 100
    searched = [
        search_embeddings(
            probes.embeddings.matrix,
            matrix,
            of_rows,
            probes.labels,
            similarity=settings.similarity or "cosine",
            keep=keep,
            itself=same,
        )
        for matrix, of_rows, same in zip(rows, names, pairs, strict=True)
    ]
    return searched, names


def _possible(
    searched: Sequence[Searched], settings: IdentificationSettings
) -> tuple[IdentificationSettings, list[str]]:
    """The settings without what cannot be measured, and a note on each such metric."""
    num_subjects = min(search.num_subjects for search in searched)
    notes = [
        f"rank-{k} left out: the gallery has {counted(num_subjects, 'subject')}."
        for k in settings.ranks
        if k > num_subjects
    ]
    ranks = [k for k in settings.ranks if k <= num_subjects]
    fpirs = settings.fpirs
    one_kind = any(search.mated.all() or not search.mated.any() for search in searched)
    if settings.protocol != "closed" and fpirs and one_kind:
        notes.append(
            "TPIR left out: an open set needs mated and non-mated probes for each gallery; add "
            "probes of subjects not enrolled, or ask for the closed protocol."
        )
        fpirs = ()
    return replace(settings, ranks=ranks, fpirs=fpirs), notes


def _measures(
    searched: Sequence[Searched], mated: Counts, subject: Counts, settings: IdentificationSettings
) -> list[_Measure]:
    """The metrics, in the order of the table. mated: (Q,) in how many galleries; subject: (Q,)."""
    closed = settings.protocol == "closed"
    with_mate = bootstrap.drawn_groups(subject[mated > 0], "subjects with mated probes")
    if with_mate.number == int(subject.max()) + 1:
        with_mate = with_mate._replace(what="subjects")
    kinds = [
        bootstrap.drawn_groups(subject[of], f"subjects with {kind} probes")
        for search in searched
        for of, kind in ((search.mated, "mated"), (~search.mated, "non-mated"))
    ]
    fewest = min(kinds, key=lambda drawn: drawn.number)

    def rank(hits: Floats, weights: Counts) -> tuple[float, float]:
        """Rank-k, pooled over galleries."""
        return float(np.sum(weights * hits) / np.sum(weights * mated)), np.inf

    def rate(fpir: float, weights: Counts) -> tuple[float, float]:
        """TPIR, the mean over galleries; the threshold if there is one for all of them."""
        each = [
            tpir(search, fpir, protocol=settings.protocol, weights=weights) for search in searched
        ]
        threshold = each[0].threshold if len(each) == 1 else np.inf
        return float(np.mean([measured.value for measured in each])), threshold

    measures = []
    for k in settings.ranks:
        hits = np.sum([rank_hits(search, k) for search in searched], axis=0)
        ties = "expected value over the orders of tied subjects"
        own: Conventions = {"k": k, "ties": ties, "over": "mated probes"}
        measures.append(_Measure(f"rank_k({k})", partial(rank, hits), own, with_mate))
    for fpir in settings.fpirs:
        ties = "score > threshold" if closed else "a tie for first place is a miss"
        own = {"fpir": fpir, "rule": RULES[settings.protocol], "ties": ties}
        behind = with_mate if closed else fewest
        measures.append(_Measure(f"tpir_at_fpir({fpir:g})", partial(rate, fpir), own, behind))
    return measures


def _resample(
    measures: Sequence[_Measure],
    subject: Counts,
    mated: Sequence[Bools],
    settings: IdentificationSettings,
) -> Floats:
    """Each metric's values (metrics, draws) on draws of as many probe subjects as there are, with
    replacement; draws without a probe of a needed kind are drawn again.
    """
    values: list[list[float]] = []
    need_both = bool(settings.fpirs) and settings.protocol != "closed"
    for tried, weights in enumerate(bootstrap.times_drawn(subject, settings.seed)):
        if len(values) == settings.num_resamples:
            break
        numbers = [int(weights[kind].sum()) for kind in mated]
        if sum(numbers) and (not need_both or all(0 < n < weights.sum() for n in numbers)):
            values.append([measure.of(weights)[0] for measure in measures])
        elif tried > _ROUNDS * (len(values) + 1):
            raise LikenessError("bootstrap: too few probes with or without a mate for an interval")
    return np.array(values).reshape(len(values), len(measures)).T
