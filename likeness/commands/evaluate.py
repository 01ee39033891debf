"""The files of `likeness evaluate`: score files become tables, JSON and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval import results as report
from eval.formats import embeddings as embedding_files
from eval.formats import trials
from eval.formats.provenance import likeness_version, sha256
from eval.formats.subjects import read_mapping
from eval.protocols.side_by_side import Compared, evaluate_together
from eval.protocols.verification import VerificationSettings
from eval.reports import media as media_blocks
from eval.types import Embeddings, Scores, Trials
from likeness.files import names_of_files


@dataclass(frozen=True)
class Page:
    """The page that an evaluation writes, and what it shows beside the results.

    Attributes:
        folder: Where `index.html` is written.
        embeddings: What was scored, one file for all score files or one for each: the page then has
            error-versus-reject by their norms, norm grids and a map.
        media: Folder of the images or recordings that the ids name, or a list `id path`: the page
            shows those of the hardest trials and of the norm grids.
        command: The command line, which the page repeats.
    """

    folder: Path
    embeddings: Sequence[Path] = ()
    media: Path | None = None
    command: str = ""


def page_of(
    folder: Path | None,
    embeddings: Sequence[Path] = (),
    media: Path | None = None,
    command: str = "",
) -> Page | None:
    """The page that was asked for, or None without a folder.

    Raises:
        ValueError: There is no folder for what only a page shows.
    """
    if folder is not None:
        return Page(folder, embeddings, media, command)
    if embeddings or media:
        raise ValueError(
            "embeddings and media are shown in the report; name a folder for it with --report"
        )
    return None


def evaluate_files(
    score_files: Sequence[Path],
    settings: VerificationSettings | None = None,
    *,
    reference: Path | None = None,
    trial_list: Path | None = None,
    subject_list: Path | None = None,
    group_list: Path | None = None,
    json_file: Path | None = None,
    page: Page | None = None,
) -> str:
    """Evaluates score files side by side.

    Args:
        score_files: One for each system.
        settings: What is measured and by which rule.
        reference: The score file to which the differences of the others are given, by default the
            first. Those on the same trials are paired, see `eval.paired`.
        trial_list: Labels for score files that have none, matched by pair.
        subject_list: `id subject` lines for the intervals, see `evaluate_together`.
        group_list: `id group` or `subject group` lines: error rates by group as well, see
            `eval.groups`.
        json_file: Results in the schema of docs/protocols.md.
        page: One self-contained page.

    Returns:
        The table as text.

    Raises:
        ValueError: As in reading the files and in the metrics.
        KeyError: Items of the trials have no embedding.
    """
    settings = settings or VerificationSettings()
    names = dict(zip(names_of_files(score_files), score_files, strict=True))
    _check(score_files, reference, page)
    shown = _Shown.read(page, list(names))
    labels = trials.read_trials(trial_list) if trial_list else None
    subject_of = read_mapping(subject_list) if subject_list else None
    group_of = read_mapping(group_list) if group_list else None
    systems: dict[str, tuple[Trials, Scores]] = {}
    for name, path in names.items():
        systems[name] = _read_system(path, labels, trial_list)
        shown.check(name, systems[name][0])
    compared = evaluate_together(
        systems,
        settings,
        reference=next((name for name, path in names.items() if path == reference), None),
        subject_of=subject_of,
        group_of=group_of,
    )
    lists = [path for path in (trial_list, subject_list, group_list) if path]
    inputs = {str(path): sha256(path) for path in [*score_files, *lists, *shown.files]}
    if json_file:
        report.write_json(json_file, compared.results, inputs, **compared.more_json())
    if page is not None:
        known = compared.subject_of if subject_of or shown.embeddings or group_of else None
        _write_page(page, compared, inputs, shown, known or None)
    return compared.table()


def _check(score_files: Sequence[Path], reference: Path | None, page: Page | None) -> None:
    if page is not None and len(page.embeddings) not in (0, 1, len(score_files)):
        raise ValueError(
            f"{len(page.embeddings)} embedding files for {len(score_files)} score files; give one "
            "for all or one for each, in their order"
        )
    if reference is not None and reference not in score_files:
        raise ValueError(
            f"the reference {reference} is none of the score files; give one of "
            f"{', '.join(map(str, score_files))}"
        )


@dataclass(frozen=True, eq=False)
class _Shown:
    """What the page shows beside the results, read from its files.

    Attributes:
        embeddings: System -> the embeddings that were scored; empty where none are shown.
        media: The media by id, or None.
        files: What was read, for the record.
    """

    embeddings: Mapping[str, Embeddings]
    media: media_blocks.Media | None
    files: Sequence[Path]

    @classmethod
    def read(cls, page: Page | None, systems: Sequence[str]) -> _Shown:
        """Reads the files of the page. One embedding file serves all systems."""
        if page is None:
            return cls({}, None, [])
        read = {path: embedding_files.read(path) for path in dict.fromkeys(page.embeddings)}
        of_each = [read[path] for path in page.embeddings]
        of_each *= len(systems) if len(of_each) == 1 else 1
        media = media_blocks.media_of(page.media) if page.media else None
        files = [*page.embeddings, *([page.media] if page.media and page.media.is_file() else [])]
        return cls(dict(zip(systems, of_each, strict=True)) if of_each else {}, media, files)

    def check(self, system: str, listed: Trials) -> None:
        """Refuses trials of items without an embedding, before the long work."""
        if self.embeddings:
            from eval.reports.quality import embedded_sides  # slow to import, needed here only

            embedded_sides(listed, self.embeddings[system])


def _read_system(
    path: Path, labels: Trials | None, trial_list: Path | None
) -> tuple[Trials, Scores]:
    """The labelled trials of a score file, and their scores."""
    listed, values = trials.read_scores(path, labels)
    if listed.target is None:
        where = f"neither {path} nor {trial_list} holds" if trial_list else f"{path} holds no"
        trial_lists = "a trial list that has" if trial_list else "the trial list that has"
        raise ValueError(f"{where} labels; give {trial_lists} them with --trials")
    if listed.target.all() or not listed.target.any():
        kind = "target" if listed.target.all() else "nontarget"
        raise ValueError(
            f"{path}: all {len(listed)} trials are {kind} trials; verification metrics need at "
            "least one of each kind"
        )
    return listed, Scores(values, listed.target)


def _write_page(
    page: Page,
    compared: Compared,
    inputs: Mapping[str, str],
    shown: _Shown,
    subject_of: Mapping[str, str] | None,
) -> None:
    from eval.reports import verification  # slow to import, needed here only

    page.folder.mkdir(parents=True, exist_ok=True)
    verification.html(
        page.folder / "index.html",
        compared.results,
        compared.scores,
        command=page.command,
        version=likeness_version(),
        evidence=verification.Evidence(
            inputs=inputs,
            trials=compared.trials,
            embeddings=shown.embeddings,
            labels=subject_of,
            media=shown.media,
            groups=compared.grouped,
            paired=compared.paired,
        ),
    )
