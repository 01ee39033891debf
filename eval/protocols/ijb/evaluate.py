"""The work of `likeness evaluate --ijb` (1:1) and `likeness identify --ijb` (1:N): embeddings of
faces and the lists of IJB-B or IJB-C become tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from likeness.eval import results as report
from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.provenance import names_of_files
from likeness.eval.metrics.system import NumResamples
from likeness.eval.option import Option
from likeness.eval.protocols.arguments import digests_of, files_read
from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.protocols.ijb import meta_files, protocol
from likeness.eval.results import Result
from likeness.eval.types import Trials, name_first

NO_INTERVALS = "Intervals over the subjects of the 1:N lists: --resamples 200."


def evaluate_files(
    scores: Annotated[Sequence[Path], Option("SCORES", path="any")],
    ijb: Annotated[Path, Option(path="folder")],
    preset: Sequence[str] = (),
    switch: Sequence[str] = (),
    fars: Annotated[Sequence[float], Option("--far")] = (),
    num_resamples: NumResamples = 0,
    json_file: Annotated[Path | None, Option("--json", path="output file")] = None,
) -> str:
    """1:1 of an IJB pack from features of its faces.

    Args:
        scores: As in `likeness.eval.protocols.verification.evaluate`. Here they are files of
            `likeness embed --ijb`, or any embeddings whose ids are the names of the faces.
        ijb: The folder of IJB-B or IJB-C, whose protocol it is.
        preset: With --ijb: whose conventions are used, a name of docs/reference/protocols.md such
            as insightface, adaface or opensphere (default: likeness). The table has a column for
            each file and preset.
        switch: With --ijb: change one convention, as in keep_norm=false.
        fars: As in `likeness.eval.metrics.system.VerificationSettings`. Empty stands for
            those of the protocol.
        num_resamples: As in `likeness.eval.metrics.system.VerificationSettings`. The
            subjects are those that the 1:N lists name.
        json_file: Results in the schema of docs/reference/formats.md.

    Returns:
        The table as text.

    Raises:
        ValueError, KeyError: As in `likeness.eval.protocols.ijb.protocol` and
            `likeness.eval.protocols.ijb.meta_files`.
    """
    presets = _switches(preset, switch)
    files = meta_files.find_meta_files(ijb)
    lists = [*files.galleries, files.probes] if num_resamples else []
    inputs = files_read(scores, _lists(files, presets), files.pairs, lists)
    pairs = meta_files.read_template_pairs(files.pairs)
    subjects = _subjects(files, pairs) if num_resamples else None
    results: list[Result] = []
    for system, switches, pooled in _pooled(scores, files, presets):
        results += protocol.verification_1_1(
            system,
            pooled,
            pairs,
            switches,
            fars=tuple(fars) or protocol.FARS,
            subjects=subjects,
            num_resamples=num_resamples,
        )
    if json_file:
        report.write_results(json_file, results, digests_of(inputs))
    return report.table(results) + _notes(presets) + ("" if num_resamples else f"{NO_INTERVALS}\n")


def identify_files(
    probes: Annotated[Path, Option(path="file")],
    ijb: Annotated[Path, Option(path="folder")],
    preset: Sequence[str] = (),
    switch: Sequence[str] = (),
    settings: IdentificationSettings | None = None,
    json_file: Annotated[Path | None, Option("--json", path="output file")] = None,
) -> str:
    """1:N of an IJB pack from features of its faces: a table for each preset.

    Args:
        probes: As in `likeness.eval.protocols.identification.identify`.
        ijb: As in `evaluate_files`.
        preset: As in `evaluate_files`.
        switch: As in `evaluate_files`.
        json_file: As in `evaluate_files`.
        settings: What is measured; similarity and protocol are those of the switches.

    Returns:
        The tables as text.

    Raises:
        LikenessError: The pack has no gallery lists; and as `evaluate_files`.
    """
    presets = _switches(preset, switch)
    files = meta_files.find_meta_files(ijb)
    if not files.galleries:
        raise LikenessError(f"{ijb} has no {files.name}_1N_gallery_*.csv; unpack it")
    inputs = files_read(probes, _lists(files, presets), files.galleries, files.probes)
    galleries = [meta_files.read_side(path) for path in files.galleries]
    searched = meta_files.read_side(files.probes)
    results: list[Result] = []
    tables = []
    for system, switches, pooled in _pooled([probes], files, presets):
        identified = protocol.identification_1_n(
            system, pooled, galleries, searched, switches, settings or IdentificationSettings()
        )
        results += identified.results
        tables.append((f"{system}\n\n" if len(presets) > 1 else "") + identified.table())
    if json_file:
        report.write_results(json_file, results, digests_of(inputs))
    return "\n".join(tables) + _notes(presets)


def _switches(preset: Sequence[str], switch: Sequence[str]) -> dict[str, protocol.Switches]:
    """The switches of each preset with the changes."""
    return {name: protocol.switches_of(name, switch) for name in preset or ["likeness"]}


def _pooled(
    features: Sequence[Path], files: meta_files.MetaFiles, presets: Mapping[str, protocol.Switches]
) -> Iterator[tuple[str, protocol.Switches, Embeddings]]:
    """System name, switches and templates of each feature file and preset; one file of features is
    in memory at a time.
    """
    names = names_of_files(features, "feature")
    faces, scores = meta_files.read_faces(files.faces), None
    if files.landmarks in _lists(files, presets):
        scores = meta_files.read_detector_scores(files.landmarks, faces)
    for name, path in zip(names, features, strict=True):
        rows = embeddings.read_embeddings(path)
        made = {
            preset: protocol.templates(rows, faces, switches, detector_scores=scores)
            for preset, switches in presets.items()
        }
        del rows  # the faces are many, and the templates few
        for preset, pooled in made.items():
            # Only what differs between the systems stands in their names.
            parts = [name] * (len(names) > 1 or len(presets) == 1) + [preset] * (len(presets) > 1)
            yield ", ".join(parts), presets[preset], pooled


def _lists(files: meta_files.MetaFiles, presets: Mapping[str, protocol.Switches]) -> list[Path]:
    """The lists that `_pooled` reads; the landmarks' file, with the detector's scores, only for
    presets that use these.
    """
    uses_scores = any(switches.detector_score for switches in presets.values())
    return [files.faces, files.landmarks] if uses_scores else [files.faces]


def _subjects(files: meta_files.MetaFiles, pairs: Trials) -> NDArray[np.int64]:
    """(P, 2): the subjects of both templates of each pair.

    ValueError counts templates that no 1:N list has.
    """
    sides = [meta_files.read_side(path) for path in (*files.galleries, files.probes)]
    subject_of = {
        template: subject
        for side in sides
        for template, subject in zip(side.template.tolist(), side.subject.tolist(), strict=True)
    }
    ids = (*pairs.enrol_ids, *pairs.probe_ids)
    if lacking := [id for id in dict.fromkeys(ids) if int(id) not in subject_of]:
        count = f"{len(lacking)} templates are in no 1:N list ({name_first(lacking)})"
        raise LikenessError(f"{files.pairs}: {count}; leave --resamples out")
    enrol, probe = (
        np.array([subject_of[int(id)] for id in side], dtype=np.int64)
        for side in (pairs.enrol_ids, pairs.probe_ids)
    )
    return np.stack([enrol[pairs.enrol], probe[pairs.probe]], axis=1)


def _notes(presets: Mapping[str, protocol.Switches]) -> str:
    """Every switch of every preset: a number without them means nothing."""
    return "".join(
        f"{name}: {', '.join(f'{key} {value}' for key, value in asdict(switches).items())}.\n"
        for name, switches in presets.items()
    )
