"""The page of `likeness evaluate`: metrics with intervals, curves, distributions, quality, the
space of the embeddings, the hardest trials, the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from eval.formats.files import atomic_path
from eval.groups import Grouped, blocks, notes
from eval.paired import Paired
from eval.paired import notes as paired_notes
from eval.paired import rows as paired_rows
from eval.reports.embeddings import embedding_map, norm_grid, space_3d
from eval.reports.media import SECONDS, Media
from eval.reports.page import document, drawn, folded, inputs_table, prose, rows_of, table
from eval.reports.scores import (
    histogram_figure,
    reject_curves,
    reject_figure,
    reliability_figure,
    trade_off,
    trial_quality,
)
from eval.results import (
    NO_INTERVAL,
    Result,
    by_system,
    ends_text,
    footnotes,
    metric_label,
    metric_text,
)
from eval.types import Embeddings, Scores, Trials

_DASH, _MINUS = "\u2013", "\u2212"


def html(
    path: str | Path,
    results: Sequence[Result],
    scores: Mapping[str, Scores],
    *,
    command: str,
    version: str,
    inputs: Mapping[str, str] | None = None,
    trials: Mapping[str, Trials] | None = None,
    title: str = "Verification report",
    num_hardest: int = 10,
    embeddings: Mapping[str, Embeddings] | None = None,
    labels: Mapping[str, str] | None = None,
    media: Media | None = None,
    groups: Sequence[Grouped] = (),
    paired: Paired | None = None,
) -> None:
    """Write one self-contained HTML page. No network is used, now or when it is read.

    scores: system -> its scores, for the systems in `results`. trials: system -> its trials, for
    the ids of the hardest (else their numbers).
    inputs: file -> SHA-256. command: recomputes the page. embeddings: system -> those it scored;
    they add error-versus-reject, norm grids and maps.
    groups: error rates by group, a section of their own. paired: differences to one of the systems.
    labels: id -> subject, colours of the maps. media: shows the hardest trials and the norm grids.
    ValueError if the systems of `results`, `scores`, `trials` and `embeddings` do not fit, or the
    trials and scores of one; KeyError for missing embeddings.
    """
    trials, embeddings, media = trials or {}, embeddings or {}, media or Media(_nothing)
    systems, _, _ = by_system(results)
    if (
        set(systems) != set(scores)
        or not set(trials) <= set(systems)
        or not set(embeddings) <= set(trials)
    ):
        raise ValueError(
            f"report: results of {sorted(systems)}, scores of {sorted(scores)}, trials of "
            f"{sorted(trials)}, embeddings of {sorted(embeddings)}; "
            "give the same systems everywhere"
        )
    for name, one in trials.items():
        if len(one) != scores[name].values.size:
            raise ValueError(
                f"report: {name} has {len(one)} trials and {scores[name].values.size} scores; they "
                "must pair up"
            )
    sections = {
        "Results": _metric_table(results)
        + f'<p class="soft">{"<br>".join(map(escape, footnotes(results)))}</p>',
        f"Differences to {paired.reference}" if paired else "Differences": _differences(paired)
        if paired
        else "",
        "Groups": folded({one.system: _grouped(one) for one in groups}) if groups else "",
        "Error trade-off": trade_off(scores),
        "Score distributions": _distributions(results, scores),
        "Reliability": _reliability(results, scores),
        "Hardest trials": prose(
            "Look and listen here first: wrong labels and broken files collect at both ends."
        )
        + folded(
            {name: _hardest(scores[name], trials.get(name), num_hardest, media) for name in systems}
        ),
        "Quality": _quality(scores, trials, embeddings, media),
        "Embedding map": _maps(trials, embeddings, labels),
        "Images and sound": prose(media.note()) if media.note() else "",
        "Conventions": prose("Each number above depends on these choices.") + _conventions(results),
        "Recompute": f"<pre>{escape(command)}</pre>" + (inputs_table(inputs) if inputs else ""),
    }
    page = document(
        title, f"{', '.join(systems)} on {_sizes(results, systems)}. Likeness {version}.", sections
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _nothing(id: str) -> None:
    return None


def _sizes(results: Sequence[Result], systems: Sequence[str]) -> str:
    counts = [next(one.counts for one in results if one.system == system) for system in systems]
    sizes = {
        f"{c['targets']:,} target and {c['nontargets']:,} nontarget trials"
        + (f" of {c['subjects']:,} subjects" if c["subjects"] is not None else "")
        for c in counts
    }
    return sizes.pop() if len(sizes) == 1 else "different trial lists"


def _metric_table(results: Sequence[Result]) -> str:
    systems, metrics, cells = by_system(results)
    body = []
    for metric in metrics:
        row = [f'<th scope="row">{escape(metric_label(metric))}</th>']
        for one in (cells.get((metric, system)) for system in systems):
            ends = "" if one is None else _interval(one)
            row.append(
                '<td class="n '
                f'v">{_DASH if one is None else metric_text(metric, one.value)}</td><td '
                f'class="i">{ends}</td>'
            )
        body.append(row)
    head = "".join(
        f'<th class="s" scope="col" colspan="2">{escape(system)}</th>' for system in systems
    )
    return (
        f'<div class="wide"><table><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{rows_of(body)}</tbody></table></div>"
    )


def _interval(result: Result) -> str:
    noted = "interval_note" in result.conventions
    if result.interval is None:
        return NO_INTERVAL if noted else ""
    return _DASH.join(ends_text(result.metric, result.interval)) + (" *" if noted else "")


def _differences(found: Paired) -> str:
    head, *body = paired_rows(found) or [[]]
    return (table(head, body, kind="t") if body else "") + "".join(
        prose(one, soft=True) for one in paired_notes(found)
    )


def _grouped(grouped: Grouped) -> str:
    """Sizes and rates of the groups, then what they are."""
    parts = [
        f"<h3>{escape(caption.removeprefix(f'{grouped.system}: '))}</h3>"
        f"{table(head, rows, kind='t')}"
        for caption, head, rows in blocks(grouped)
    ]
    return "".join([*parts, *(prose(one, soft=True) for one in notes(grouped))])


def _distributions(results: Sequence[Result], scores: Mapping[str, Scores]) -> str:
    thresholds = {one.system: one.threshold for one in results if one.metric == "eer"}
    parts = [
        drawn(histogram_figure, one, thresholds.get(name), alt=f"Score histogram of {name}")
        for name, one in scores.items()
    ]
    if not any(parts):
        return ""
    told = prose(
        "The less the two classes overlap, the better they can be told apart; every error lies in "
        "the overlap."
    )
    titled = "".join(
        f"<div><h3>{escape(name)}</h3>{one}</div>" for name, one in zip(scores, parts, strict=True)
    )
    return f'{told}<div class="two">{titled}</div>'


def _reliability(results: Sequence[Result], scores: Mapping[str, Scores]) -> str:
    """Of the systems whose scores were evaluated as log-likelihood ratios."""
    stated = {one.system: scores[one.system] for one in results if one.metric == "cllr"}
    told = (
        "The scores are log-likelihood ratios: a trial of LLR 2.3 should be ten times likelier "
        "among targets. On the diagonal they are what they say; "
        "flatter means overconfident, steeper too timid. Bars: 95 % intervals over trials, which "
        "share subjects."
    )
    return (
        prose(told)
        + drawn(reliability_figure, stated, alt="Reliability of the log-likelihood ratios")
        if stated
        else ""
    )


def _quality(
    scores: Mapping[str, Scores],
    trials: Mapping[str, Trials],
    embeddings: Mapping[str, Embeddings],
    media: Media,
) -> str:
    """What the norms are worth: error-versus-reject of all systems, then the items of lowest and
    highest norm of each set of embeddings.
    """
    if not embeddings:
        return ""
    measures, meanings = {}, []
    for name, one in embeddings.items():
        measures[name], meaning = trial_quality(trials[name], one)
        meanings.append(meaning)
    told = (
        "The norm of an embedding as a measure of the quality of its input. Trials are rejected "
        f"by quality, {'; '.join(dict.fromkeys(meanings))}; "
        "the error of the rest falls if the measure is worth its name and stays at the dotted line "
        "if it says nothing."
    )
    parts = [
        prose(told),
        drawn(reject_figure, reject_curves(scores, measures), alt="Error versus reject"),
    ]
    grids = {}
    for names, one in _distinct(embeddings):
        used = _used(one, [trials[name] for name in names])
        grids[", ".join(names)] = norm_grid(used.ids, used.norms, media)
    ends = "Below: the items at both ends, each with its norm" + (
        f"; of recordings the first {SECONDS:g} seconds."
        if "<audio" in "".join(grids.values())
        else "."
    )
    return "".join([*parts, prose(ends, soft=True), folded(grids)])


def _maps(
    trials: Mapping[str, Trials],
    embeddings: Mapping[str, Embeddings],
    labels: Mapping[str, str] | None,
) -> str:
    parts = []
    for names, one in _distinct(embeddings):
        used = _used(one, [trials[name] for name in names])
        heading = f"<h3>{escape(', '.join(names))}</h3>" if len(embeddings) > len(names) else ""
        parts.append(
            f"<div>{heading}{space_3d(used, labels) if used.matrix.shape[1] == 3 else ''}"
            f"{embedding_map(used, labels)}</div>"
        )
    return f'<div class="two">{"".join(parts)}</div>' if parts else ""


def _distinct(embeddings: Mapping[str, Embeddings]) -> list[tuple[list[str], Embeddings]]:
    """Each set of embeddings once, with the systems that it is of."""
    groups: dict[int, tuple[list[str], Embeddings]] = {}
    for name, one in embeddings.items():
        groups.setdefault(id(one), ([], one))[0].append(name)
    return list(groups.values())


def _used(embeddings: Embeddings, trials: Sequence[Trials]) -> Embeddings:
    """Those of the trials' items."""
    wanted = {
        one for listed in trials for ids in (listed.enrol_ids, listed.probe_ids) for one in ids
    }
    kept = [one for one in embeddings.ids if one in wanted]
    return Embeddings(tuple(kept), embeddings.matrix[embeddings.rows(kept)], embeddings.meta)


def _hardest(scores: Scores, trials: Trials | None, count: int, media: Media) -> str:
    """Two tables: the target trials with the lowest and the nontarget trials with the highest
    scores (file order among ties).
    """
    tables = []
    for caption, chosen, sign in (
        ("Lowest target scores", scores.target, 1),
        ("Highest nontarget scores", ~scores.target, -1),
    ):
        index, ease = np.flatnonzero(chosen), sign * scores.values[chosen]
        near = np.flatnonzero(
            ease <= np.partition(ease, min(count, ease.size) - 1)[min(count, ease.size) - 1]
        )
        rows = []
        for i in index[near[np.argsort(ease[near], kind="stable")[:count]]].tolist():
            names = (
                ()
                if trials is None
                else (trials.enrol_ids[trials.enrol[i]], trials.probe_ids[trials.probe[i]])
            )
            sides = (
                "".join(
                    f'<div>{media.show(one)}<span class="id">{escape(one)}</span></div>'
                    for one in names
                )
                or f"<div>trial {i + 1:,}</div>"
            )
            rows.append(
                [
                    f'<td class="n">{f"{scores.values[i]:.4f}".replace("-", _MINUS)}</td>',
                    f'<td><div class="pair">{sides}</div></td>',
                ]
            )
        head = (
            '<tr><th class="n" scope="col">Score</th><th scope="col">'
            + ("Trial" if trials is None else "Enrol, probe")
            + "</th></tr>"
        )
        tables.append(
            "<div "
            f'class="wide"><table><caption>{caption}</caption><thead>{head}</thead><tbody>'
            f"{rows_of(rows)}</tbody></table></div>"
        )
    return f'<div class="two">{"".join(tables)}</div>'


def _conventions(results: Sequence[Result]) -> str:
    """What all results share first, then each metric's own switches."""
    shared = {
        key: value
        for key, value in results[0].conventions.items()
        if all(one.conventions.get(key) == value for one in results)
    }
    lines: dict[tuple[str, str], list[str]] = {
        (
            "All",
            "; ".join(
                f"{key}: {value}"
                for key, value in {"protocol": results[0].protocol, **shared}.items()
            ),
        ): []
    }
    for one in results:
        own = "; ".join(
            f"{key}: {value}" for key, value in one.conventions.items() if key not in shared
        )
        lines.setdefault((metric_label(one.metric), own), []).append(one.system)
    num_systems = len({one.system for one in results})
    body = []
    for (label, text), systems in lines.items():
        only = f" ({', '.join(systems)})" if systems and len(systems) < num_systems else ""
        if text:
            body.append(
                [f'<th scope="row">{escape(label + only)}</th>', f"<td>{escape(text)}</td>"]
            )
    return f'<div class="wide"><table><tbody>{rows_of(body)}</tbody></table></div>'
