"""CN-Celeb: Chinese celebrities in eleven genres (singing, interviews, drama, ...), 16 kHz FLAC; a
model is enrolled from several utterances.

Layout, as OpenSLR 82's archives unpack: DATA/CN-Celeb_flac/{data/SPEAKER/*.flac, dev/dev.lst,
eval/{enroll,test}/*.flac, eval/lists/*} and, if it is there,
DATA/CN-Celeb2_flac/{data/SPEAKER/*.flac, spk.lst}. The lists say .wav where the files are .flac:
ids are matched as lists.matched says, without suffix. Fan et al. 2020, Li et al. 2022. List
formats: WeSpeaker examples/cnceleb/v2/local/prepare_data.sh and format_trials_cnceleb.py.

Two ways to enrol: "concat" takes the recording in eval/enroll that joins a model's utterances;
"average" pools the embeddings of the single utterances that eval/lists/enroll.map names (`likeness
score --enrolment`); WeSpeaker calls them CNC-Eval-Concat and CNC-Eval-Avg, and reports both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np

from eval.formats.files import atomic_path, text_lines
from eval.formats.trials import read_trials, write_trials
from eval.templates import read_enrolment
from eval.types import Trials, name_first
from modalities.speaker.audio import AV_SUFFIXES, SUFFIXES
from modalities.speaker.lists import find, matched, stem
from toolkit.data.batch import Item, write_items
from toolkit.data.source import Count

FETCH = "`likeness prepare cnceleb --data DATA` fetches it"
_ROOTS = ("CN-Celeb_flac", "CN-Celeb", "CN-Celeb_wav", ".")
_SECOND = ("CN-Celeb2_flac", "CN-Celeb2", "CN-Celeb2_wav")


def items(
    data: str | Path, *, split: Literal["dev", "eval"] = "dev", second: bool = True
) -> list[Item]:
    """Items with id SPEAKER/name and label SPEAKER ("dev": the speakers of dev.lst, and CN-Celeb2's
    if it is there and `second`), or of eval/.

    Raises FileNotFoundError without the folders or lists, ValueError for listed speakers without
    audio (counted, the first named).
    """
    data = Path(data)
    if split not in ("dev", "eval"):
        raise ValueError(f"cnceleb: split is {split!r}; allowed are 'dev' and 'eval'")
    root = _root(data)
    if split == "eval":
        return [
            one._replace(label=_speaker(one.id))
            for part in ("enroll", "test")
            for one in _files(root / "eval" / part, f"{part}/")
        ]
    chosen = _listed(root / "data", root / "dev" / "dev.lst")
    other = next((data / one for one in _SECOND if (data / one).is_dir()), None)
    return chosen + (
        _listed(other / "data", other / "spk.lst") if other is not None and second else []
    )


def trials(data: str | Path) -> tuple[list[Item], Trials]:
    """Items of eval/enroll and eval/test and the trials of trials.lst, the models' ids replaced by
    those of their joined recordings (enroll.lst): "concat".

    Raises FileNotFoundError without the lists; ValueError: models that enroll.lst does not name,
    ids without audio (all counted, the first named).
    """
    root = _root(Path(data))
    listed = read_trials(_list(root, "trials.lst"))
    recording = {
        fields[0]: fields[1]
        for _, line in text_lines(_list(root, "enroll.lst"))
        if len(fields := line.split()) == 2
    }
    unknown = [one for one in listed.enrol_ids if one not in recording]
    if unknown:
        raise ValueError(
            f"{_list(root, 'trials.lst')}: {len(unknown)} models are not in enroll.lst "
            f"({name_first(unknown)}); fetch the lists again"
        )
    joined = Trials(
        tuple(recording[one] for one in listed.enrol_ids),
        listed.probe_ids,
        listed.enrol,
        listed.probe,
        listed.target,
    )
    return matched(
        joined, items(data, split="eval"), where=str(_list(root, "trials.lst")), hint=FETCH
    )


def enrolment(data: str | Path) -> tuple[list[Item], dict[str, tuple[str, ...]], Trials]:
    """For "average": the items to embed (single enrolment utterances, then probes), model -> its
    items' ids, and the trials of models against probes.

    What eval.templates.enrol and eval.similarity take: enrol(embeddings, models), then
    score_trials(trials, enrolled, embeddings). Raises as trials(); the utterances of enroll.map lie
    in DATA/CN-Celeb_flac/data.
    """
    root = _root(Path(data))
    where = _list(root, "enroll.map")
    models = read_enrolment(where)
    named = tuple(dict.fromkeys(one for listed in models.values() for one in listed))
    speakers = sorted({one.split("/", 1)[0] for one in named})
    pool = [
        one
        for speaker in speakers
        if os.path.isdir(root / "data" / speaker)
        for one in _files(root / "data" / speaker, f"{speaker}/")
    ]
    same = np.arange(len(named), dtype=np.int32)
    utterances, found = matched(
        Trials(named, named, same, same), pool, where=str(where), hint=FETCH
    )
    id_of = {one: found.enrol_ids[i] for one, i in zip(named, found.enrol.tolist(), strict=True)}
    listed = read_trials(_list(root, "trials.lst"))
    unknown = [one for one in listed.enrol_ids if one not in models]
    if unknown:
        raise ValueError(
            f"{_list(root, 'trials.lst')}: {len(unknown)} models are not in enroll.map "
            f"({name_first(unknown)}); fetch the lists again"
        )
    probes, paired = matched(
        Trials(listed.probe_ids, listed.probe_ids, listed.probe, listed.probe),
        [one for one in items(data, split="eval") if one.id.startswith("test/")],
        where=str(_list(root, "trials.lst")),
        hint=FETCH,
    )
    labelled = [one._replace(label=_speaker(one.id)) for one in utterances] + probes
    return (
        labelled,
        {
            model: tuple(id_of[one] for one in listed_items)
            for model, listed_items in models.items()
        },
        Trials(listed.enrol_ids, paired.probe_ids, listed.enrol, paired.probe, listed.target),
    )


def write_lists(data: str | Path, out: str | Path) -> str:
    """Write out/items.txt, out/trials.txt and out/enrolment.txt of "average" for `likeness embed`
    and `likeness score --enrolment`; returns the commands.
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
        f"likeness embed --model RUN --items {out / 'items.txt'} --root {data} --out "
        "eval.formats.npz\n"
        f"likeness score --trials {out / 'trials.txt'} --enrolment {out / 'enrolment.txt'} "
        "--embeddings eval.formats.npz --out scores.txt"
    )


def check(data: Path) -> list[Count]:
    """What of CN-Celeb is there, by its own lists: speakers with audio, enrolment and test
    recordings that the trials name.
    """
    counts = []
    root = next((data / one for one in _ROOTS if (data / one / "eval").is_dir()), None)
    for name, folder, listing in (
        ("CN-Celeb", root, "dev/dev.lst"),
        (
            "CN-Celeb2",
            next((data / one for one in _SECOND if (data / one).is_dir()), None),
            "spk.lst",
        ),
    ):
        wanted = (
            _names(folder / listing) if folder is not None and (folder / listing).is_file() else []
        )
        there = sum(folder is not None and os.path.isdir(folder / "data" / one) for one in wanted)
        counts.append(Count(f"training speakers of {name} ({listing})", there, len(wanted) or 1))
    where = find(root, ["trials.lst"], ["eval/lists"]) if root is not None else None
    listed = read_trials(where) if where else None
    for part, ids in (
        ("enroll", listed.enrol_ids if listed else ()),
        ("test", listed.probe_ids if listed else ()),
    ):
        stems = (
            {stem(one.id) for one in _files(root / "eval" / part, f"{part}/")}
            if root is not None and (root / "eval" / part).is_dir()
            else set()
        )
        wanted = [one if part == "test" else f"enroll/{one}" for one in ids]
        counts.append(
            Count(
                f"recordings in eval/{part} (trials.lst)",
                sum(stem(one) in stems for one in wanted),
                len(wanted) or 1,
            )
        )
    return counts


def _root(data: Path) -> Path:
    for one in _ROOTS:
        if (data / one / "eval" / "lists").is_dir():
            return data / one
    raise FileNotFoundError(f"{data}: no CN-Celeb_flac with eval/lists in it; {FETCH}")


def _list(root: Path, name: str) -> Path:
    names = [name, name.replace("enroll", "enrol")]
    where = find(root, names, ["eval/lists"])
    if where is None:
        raise FileNotFoundError(f"{root / 'eval' / 'lists'}: no {name}; {FETCH}")
    return where


def _names(path: Path) -> list[str]:
    """The first field of every line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such list; {FETCH}")
    return [line.split()[0] for _, line in text_lines(path)]


def _listed(folder: Path, listing: Path) -> list[Item]:
    speakers = sorted(set(_names(listing)))
    absent = [
        one for one in speakers if not os.path.isdir(folder / one)
    ]  # Path.is_dir raises where a name is too long
    if absent:
        raise ValueError(
            f"{listing}: {len(absent)} of {len(speakers)} speakers have no folder in {folder} "
            f"({name_first(absent)}); {FETCH}"
        )
    return [
        one._replace(label=speaker)
        for speaker in speakers
        for one in _files(folder / speaker, f"{speaker}/")
    ]


def _files(folder: Path, prefix: str) -> list[Item]:
    """The audio files directly in a folder, sorted; id = prefix + name."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; {FETCH}")
    found = [
        one
        for one in folder.iterdir()
        if one.suffix.lower() in SUFFIXES + AV_SUFFIXES and not one.name.startswith(".")
    ]
    return [Item(prefix + one.name, one) for one in sorted(found)]


def _speaker(id: str) -> str:
    """The speaker of "test/id00800-singing-01-001.flac", "enroll/id00800-enroll.flac" or
    "id00800/singing-01-002.flac".
    """
    folder, _, name = id.rpartition("/")
    return name.split("-", 1)[0] if folder in ("test", "enroll") else folder
