"""CN-Celeb: Chinese celebrities in eleven genres (singing, interviews, drama, ...), 16 kHz FLAC.

CN-Celeb 1 has 997 speakers, of which 200 test (eval/) and 797 train (dev/dev.lst); CN-Celeb 2 has
1,996 more, which train. No speaker is in both.

A model is enrolled from several utterances. `enrolment` pools their embeddings: those that
eval/lists/enroll.map names (`likeness score --enrolment`), which WeSpeaker calls CNC-Eval-Avg.
`trials` takes one recording of all of them, eval/enroll/*.flac, which WeSpeaker calls
CNC-Eval-Concat.

The layout is that of OpenSLR 82's archives: DATA/CN-Celeb_flac/{data/SPEAKER/*.flac, dev/dev.lst,
eval/enroll/*.flac, eval/test/*.flac, eval/lists/*} and DATA/CN-Celeb2_flac/{data/SPEAKER/*.flac,
spk.lst}. The lists say .wav where the files are .flac, so ids are matched without their suffix, by
the rule of lists.matched.

Sources: Fan et al. 2020, Li et al. 2022. The formats of the lists are those of WeSpeaker,
examples/cnceleb/v2/local/prepare_data.sh and format_trials_cnceleb.py.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.formats.trials import read_trials, write_trials
from likeness.eval.items.item_lists import write_items
from likeness.eval.items.items import Item, Items
from likeness.eval.items.suffixes import AV_SOUNDS, SOUNDS
from likeness.eval.types import Trials, check_choice, name_first
from likeness.eval.writing import write_text
from likeness.modalities.folders import scan
from likeness.modalities.speaker._trial_items import match_items
from likeness.modalities.speaker.audio import SpeedItems, speed_copies

FETCH = "`likeness prepare cnceleb --data DATA` fetches it"
_ROOTS = ("CN-Celeb_flac", "CN-Celeb", "CN-Celeb_wav", ".")
_SECOND = ("CN-Celeb2_flac", "CN-Celeb2", "CN-Celeb2_wav")

Split = Literal["train", "test", "all"]


def items(
    data: str | Path,
    *,
    split: Split = "train",
    speeds: Sequence[float] = (),
    speed_items: SpeedItems = "all",
) -> Items:
    """List the utterances of a split, sorted by id.

    Args:
        data: The folder that holds CN-Celeb_flac, and perhaps CN-Celeb2_flac.
        split: "train" has the speakers of dev/dev.lst and all of CN-Celeb 2, "test" the others of
            CN-Celeb 1, "all" everyone.
        speeds: The speeds of copies, which are new classes (audio.speed_copies).
        speed_items: Which utterances are copied: "all", or "one" of each speaker.

    Returns:
        Items with id SPEAKER/name.flac and label SPEAKER.

    Raises:
        LikenessError: A folder or list is missing.
    """
    check_choice("split", split, get_args(Split))
    data = Path(data)
    root = _root(data)
    development = root / "dev" / "dev.lst"
    if not development.is_file():
        raise LikenessError(f"{development}: there is no such list; {FETCH}")
    second = [data / name / "data" for name in _SECOND if (data / name / "data").is_dir()][:1]
    every = Items.joined(scan(folder) for folder in (root / "data", *second)).sorted_as_paths()
    trained = set(development.read_text(encoding="utf-8").split())
    trained |= {speaker.name for folder in second for speaker in folder.iterdir()}
    if split != "all":
        is_chosen = every.labelled(trained) == (split == "train")
        every = every.take(np.flatnonzero(is_chosen))
    return speed_copies(every, speeds, speed_items=speed_items)


def trials(data: str | Path) -> tuple[Items, Trials]:
    """List the recordings that enrol and those that test, and the trials among them.

    Args:
        data: The folder that holds CN-Celeb_flac.

    Returns:
        The items, with the ids enroll/name.flac and test/name.flac, and the trials.

    Raises:
        LikenessError: A folder or list is missing, enroll.lst does not name some models, or ids
            have no audio.
    """
    root = _root(Path(data))
    lists = root / "eval" / "lists"
    listed = read_trials(lists / "trials.lst")
    recordings = read_enrolment(lists / "enroll.lst")
    _refuse_unknown(listed, recordings, lists / "enroll.lst")
    enrolled = tuple(recordings[model][0] for model in listed.enrol_ids)
    pairs = Trials(enrolled, listed.probe_ids, listed.enrol, listed.probe, listed.target)
    candidates = _files(root / "eval" / "enroll", "enroll/")
    candidates += _files(root / "eval" / "test", "test/")
    return match_items(pairs, candidates, where=str(lists / "trials.lst"), hint=FETCH)


def enrolment(data: str | Path) -> tuple[Items, dict[str, tuple[str, ...]], Trials]:
    """List the recordings, the models and the trials of eval/.

    likeness.eval.scoring.templates.enrol and likeness.eval.metrics.similarity take them:
    enrol(embeddings, models), then score_trials(trials, enrolled, embeddings). The utterances of
    enroll.map lie in DATA/CN-Celeb_flac/data.

    Args:
        data: The folder that holds CN-Celeb_flac.

    Returns:
        The items to embed (single enrolment utterances, then probes), the ids of each model's
        items, and the trials of models against probes.

    Raises:
        LikenessError: A folder or list is missing, enroll.map does not name some models, or ids
            have no audio. All are counted, and the first is named.
    """
    root = _root(Path(data))
    lists = root / "eval" / "lists"
    map_path, trials_path = lists / "enroll.map", lists / "trials.lst"
    models = read_enrolment(map_path)
    names = tuple(dict.fromkeys(name for listed in models.values() for name in listed))
    pool = list[Item]()
    for speaker in sorted({name.split("/", 1)[0] for name in names}):
        if os.path.isdir(root / "data" / speaker):
            pool += _files(root / "data" / speaker, f"{speaker}/")
    same = np.arange(len(names), dtype=np.int32)
    utterances, matches = match_items(
        Trials(names, names, same, same), pool, where=str(map_path), hint=FETCH
    )
    matched = (matches.enrol_ids[i] for i in matches.enrol.tolist())
    id_of = dict(zip(names, matched, strict=True))
    listed = read_trials(trials_path)
    _refuse_unknown(listed, models, map_path)
    probes, paired = match_items(
        Trials(listed.probe_ids, listed.probe_ids, listed.probe, listed.probe),
        _files(root / "eval" / "test", "test/"),
        where=str(trials_path),
        hint=FETCH,
    )
    return (
        Items.joined((utterances, probes)),
        {model: tuple(id_of[name] for name in names) for model, names in models.items()},
        Trials(listed.enrol_ids, paired.probe_ids, listed.enrol, paired.probe, listed.target),
    )


def write_lists(data: str | Path, out: str | Path) -> str:
    """Write the lists of eval/ for `likeness embed` and `likeness score --enrolment`.

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
    lines = (f"{model} {' '.join(ids)}\n" for model, ids in models.items())
    write_text(out / "enrolment.txt", "".join(lines))
    write_trials(out / "trials.txt", listed)
    return (
        f"likeness embed --model RUN --items {out / 'items.txt'} --root {data} --out eval.npz\n"
        f"likeness score --trials {out / 'trials.txt'} --enrolment {out / 'enrolment.txt'} "
        "--embeddings eval.npz --out scores.txt"
    )


def _refuse_unknown(listed: Trials, models: Mapping[str, object], path: Path) -> None:
    """Refuse trials of models that a list does not name."""
    unknown = [model for model in listed.enrol_ids if model not in models]
    if unknown:
        raise LikenessError(
            f"{path}: {len(unknown)} models of trials.lst are not in it ({name_first(unknown)}); "
            "fetch the lists again"
        )


def _root(data: Path) -> Path:
    """Return the folder of CN-Celeb."""
    for name in _ROOTS:
        if (data / name / "eval" / "lists").is_dir():
            return data / name
    raise LikenessError(f"{data}: there is no CN-Celeb_flac with eval/lists in it; {FETCH}")


def _files(folder: Path, prefix: str) -> list[Item]:
    """List the audio files directly in a folder, sorted; the id is the prefix and the name."""
    paths = [
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SOUNDS + AV_SOUNDS and not path.name.startswith(".")
    ]
    return [Item(prefix + path.name, path) for path in sorted(paths)]
