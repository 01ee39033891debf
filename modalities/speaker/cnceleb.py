"""CN-Celeb: Chinese celebrities in eleven genres (singing, interviews, drama, ...), 16 kHz FLAC.

A model is enrolled from several utterances, in one of two ways. "concat" takes the recording in
eval/enroll that joins a model's utterances. "average" pools the embeddings of the single utterances
that eval/lists/enroll.map names (`likeness score --enrolment`). WeSpeaker calls them
CNC-Eval-Concat and CNC-Eval-Avg, and reports both.

The layout is that of OpenSLR 82's archives: DATA/CN-Celeb_flac/{data/SPEAKER/*.flac, dev/dev.lst,
eval/{enroll,test}/*.flac, eval/lists/*} and, if it is there,
DATA/CN-Celeb2_flac/{data/SPEAKER/*.flac, spk.lst}. The lists say .wav where the files are .flac, so
ids are matched without their suffix, by the rule of lists.matched.

Sources: Fan et al. 2020, Li et al. 2022. The formats of the lists are those of WeSpeaker,
examples/cnceleb/v2/local/prepare_data.sh and format_trials_cnceleb.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import atomic_path, text_lines
from eval.formats.trials import read_trials, write_trials
from eval.scoring.templates import read_enrolment
from eval.types import Trials, name_first
from modalities.speaker.decoding import AV_SUFFIXES, SUFFIXES
from modalities.speaker.lists import find, matched
from toolkit.data.item_lists import write_items
from toolkit.data.items import Item, Items

FETCH = "`likeness prepare cnceleb --data DATA` fetches it"
_ROOTS = ("CN-Celeb_flac", "CN-Celeb", "CN-Celeb_wav", ".")
_SECOND = ("CN-Celeb2_flac", "CN-Celeb2", "CN-Celeb2_wav")


def items(
    data: str | Path, *, split: Literal["dev", "eval"] = "dev", second: bool = True
) -> list[Item]:
    """List the recordings of the training speakers, or those of eval/.

    Args:
        data: The folder that holds CN-Celeb_flac.
        split: "dev" are the speakers of dev.lst, "eval" the recordings in eval/enroll and
            eval/test.
        second: Whether the speakers of CN-Celeb2 join "dev", if CN-Celeb2 is there.

    Returns:
        Items with id SPEAKER/name and label SPEAKER for "dev". For "eval" the id begins with the
            folder,
        enroll/ or test/.

    Raises:
        LikenessError: A folder or list is missing. Listed speakers have no audio; they are counted,
            and the first is named.
    """
    data = Path(data)
    if split not in ("dev", "eval"):
        raise LikenessError(f"cnceleb: split is {split!r}; allowed are 'dev' and 'eval'")
    root = _root(data)
    if split == "eval":
        return [
            item._replace(label=_speaker(item.id))
            for part in ("enroll", "test")
            for item in _files(root / "eval" / part, f"{part}/")
        ]
    chosen = _listed(root / "data", root / "dev" / "dev.lst")
    other = _second_root(data) if second else None
    if other is not None:
        chosen += _listed(other / "data", other / "spk.lst")
    return chosen


def trials(data: str | Path) -> tuple[Items, Trials]:
    """List the recordings and the trials of eval/ for "concat".

    The models' ids in trials.lst are replaced by those of their joined recordings (enroll.lst).

    Args:
        data: The folder that holds CN-Celeb_flac.

    Returns:
        The items of eval/enroll and eval/test, and the trials.

    Raises:
        LikenessError: A list is missing. Enroll.lst does not name some models, or ids have no
            audio. All are counted, and the first is named.
    """
    root = _root(Path(data))
    path = _list(root, "trials.lst")
    listed = read_trials(path)
    recording = {
        fields[0]: fields[1]
        for _, line in text_lines(_list(root, "enroll.lst"))
        if len(fields := line.split()) == 2
    }
    unknown = [model for model in listed.enrol_ids if model not in recording]
    if unknown:
        raise LikenessError(
            f"{path}: {len(unknown)} models are not in enroll.lst "
            f"({name_first(unknown)}); fetch the lists again"
        )
    joined = Trials(
        tuple(recording[model] for model in listed.enrol_ids),
        listed.probe_ids,
        listed.enrol,
        listed.probe,
        listed.target,
    )
    return matched(joined, items(data, split="eval"), where=str(path), hint=FETCH)


def enrolment(data: str | Path) -> tuple[Items, dict[str, tuple[str, ...]], Trials]:
    """List the recordings, the models and the trials of eval/ for "average".

    eval.scoring.templates.enrol and eval.similarity take them: enrol(embeddings, models), then
    score_trials(trials, enrolled, embeddings). The utterances of enroll.map lie in
    DATA/CN-Celeb_flac/data.

    Args:
        data: The folder that holds CN-Celeb_flac.

    Returns:
        The items to embed (single enrolment utterances, then probes), the ids of each model's
            items,
        and the trials of models against probes.

    Raises:
        LikenessError: A list is missing. As trials(), with enroll.map in place of enroll.lst.
    """
    root = _root(Path(data))
    map_path, trials_path = _list(root, "enroll.map"), _list(root, "trials.lst")
    models = read_enrolment(map_path)
    utterances, id_of = _enrolment_utterances(root, map_path, models)
    listed = read_trials(trials_path)
    unknown = [model for model in listed.enrol_ids if model not in models]
    if unknown:
        raise LikenessError(
            f"{trials_path}: {len(unknown)} models are not in enroll.map "
            f"({name_first(unknown)}); fetch the lists again"
        )
    probes, paired = matched(
        Trials(listed.probe_ids, listed.probe_ids, listed.probe, listed.probe),
        [item for item in items(data, split="eval") if item.id.startswith("test/")],
        where=str(trials_path),
        hint=FETCH,
    )
    return (
        utterances + probes,
        {model: tuple(id_of[name] for name in names) for model, names in models.items()},
        Trials(listed.enrol_ids, paired.probe_ids, listed.enrol, paired.probe, listed.target),
    )


def _enrolment_utterances(
    root: Path, map_path: Path, models: Mapping[str, Sequence[str]]
) -> tuple[list[Item], dict[str, str]]:
    """Return the single utterances that enroll.map names, and their id by the name there."""
    names = tuple(dict.fromkeys(name for listed in models.values() for name in listed))
    speakers = sorted({name.split("/", 1)[0] for name in names})
    pool = [
        item
        for speaker in speakers
        if os.path.isdir(root / "data" / speaker)
        for item in _files(root / "data" / speaker, f"{speaker}/")
    ]
    same = np.arange(len(names), dtype=np.int32)
    utterances, matches = matched(
        Trials(names, names, same, same), pool, where=str(map_path), hint=FETCH
    )
    id_of = {
        name: matches.enrol_ids[i] for name, i in zip(names, matches.enrol.tolist(), strict=True)
    }
    return [item._replace(label=_speaker(item.id)) for item in utterances], id_of


def write_lists(data: str | Path, out: str | Path) -> str:
    """Write the lists of "average" for `likeness embed` and `likeness score --enrolment`.

    Args:
        data: The folder that holds CN-Celeb_flac.
        out: The folder that items.txt, trials.txt and enrolment.txt are written to.

    Returns:
        The commands that use the lists.
    """
    chosen, models, listed = enrolment(data)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_items(out / "items.txt", chosen, Path(data))
    with atomic_path(out / "enrolment.txt") as enrolled:
        enrolled.write_text(
            "".join(f"{model} {' '.join(ids)}\n" for model, ids in models.items()), encoding="utf-8"
        )
    write_trials(out / "trials.txt", listed)
    return (
        f"likeness embed --model RUN --items {out / 'items.txt'} --root {data} --out eval.npz\n"
        f"likeness score --trials {out / 'trials.txt'} --enrolment {out / 'enrolment.txt'} "
        "--embeddings eval.npz --out scores.txt"
    )


def _root(data: Path) -> Path:
    """Return the folder of CN-Celeb."""
    for name in _ROOTS:
        if (data / name / "eval" / "lists").is_dir():
            return data / name
    raise LikenessError(f"{data}: there is no CN-Celeb_flac with eval/lists in it; {FETCH}")


def _second_root(data: Path) -> Path | None:
    """Return the folder of CN-Celeb2, or None if it is not there."""
    return next((data / name for name in _SECOND if (data / name).is_dir()), None)


def _list(root: Path, name: str) -> Path:
    """Return the path of a list in eval/lists, where "enroll" may be written "enrol"."""
    names = [name, name.replace("enroll", "enrol")]
    path = find(root, names, ["eval/lists"])
    if path is None:
        raise LikenessError(f"{root / 'eval' / 'lists'}: there is no {name}; {FETCH}")
    return path


def _names(path: Path) -> list[str]:
    """Return the first field of every line."""
    if not path.is_file():
        raise LikenessError(f"{path}: no such list; {FETCH}")
    return [line.split()[0] for _, line in text_lines(path)]


def _listed(folder: Path, listing: Path) -> list[Item]:
    """List the recordings of the speakers that a list names."""
    speakers = sorted(set(_names(listing)))
    # Path.is_dir raises where a name is too long.
    absent = [speaker for speaker in speakers if not os.path.isdir(folder / speaker)]
    if absent:
        raise LikenessError(
            f"{listing}: {len(absent)} of {len(speakers)} speakers have no folder in {folder} "
            f"({name_first(absent)}); {FETCH}"
        )
    return [
        item._replace(label=speaker)
        for speaker in speakers
        for item in _files(folder / speaker, f"{speaker}/")
    ]


def _files(folder: Path, prefix: str) -> list[Item]:
    """List the audio files directly in a folder, sorted; the id is the prefix and the name."""
    if not folder.is_dir():
        raise LikenessError(f"{folder}: no such folder; {FETCH}")
    paths = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES + AV_SUFFIXES and not path.name.startswith(".")
    ]
    return [Item(prefix + path.name, path) for path in sorted(paths)]


def _speaker(id: str) -> str:
    """Return the speaker of an id.

    Ids are "test/id00800-singing-01-001.flac", "enroll/id00800-enroll.flac" or
    "id00800/singing-01-002.flac".
    """
    folder, _, name = id.rpartition("/")
    return name.split("-", 1)[0] if folder in ("test", "enroll") else folder
