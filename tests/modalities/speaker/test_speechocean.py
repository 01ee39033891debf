"""speechocean762 in both layouts: its folds, and what is refused."""

import shutil
from pathlib import Path

import pytest

from likeness.data import speechocean, synthetic
from tests.modalities.data_set import DataSet

AGES = {f"{i:04d}": ("fm"[i % 2], (6, 12, 25)[i // 2 % 3]) for i in range(24)}


def miniature(folder: Path) -> None:
    """Synthetic speakers in our layout."""
    recordings = folder / "speechocean" / "flac"
    synthetic.write_voices(recordings, num_speakers=24, num_utterances=2, seconds=(0.8, 1.2))
    for path, name in zip(sorted(recordings.iterdir()), AGES, strict=True):
        path.rename(recordings / name)
    lines = [f"{name}\t{sex}\t{age}" for name, (sex, age) in AGES.items()]
    table = "\n".join(["speaker\tsex\tage", *lines, ""])
    (folder / "speechocean" / "speakers.tsv").write_text(table)


DATA_SETS = {
    "speechocean": DataSet(miniature, speechocean.items, speechocean.trials, labels=list(AGES))
}


@pytest.fixture(params=["ours", "theirs"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    miniature(tmp_path)
    if request.param == "ours":
        return tmp_path
    home = tmp_path / "speechocean762"
    for path in (tmp_path / "speechocean").rglob("*.flac"):
        place = home / "WAVE" / f"SPEAKER{path.parent.name}" / f"{path.stem}.WAV"
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    shutil.rmtree(tmp_path / "speechocean")
    for part, chosen in (("train", sorted(AGES)[:12]), ("test", sorted(AGES)[12:])):
        (home / part).mkdir()
        for place, file in enumerate(("spk2gender", "spk2age")):
            lines = (f"{name} {AGES[name][place]}\n" for name in chosen)
            (home / part / file).write_text("".join(lines))
    return tmp_path


def test_folds_divide_the_speakers_and_balance_sex_and_age(data: Path) -> None:
    known = speechocean.speakers(data)
    assert known == AGES
    folds = [speechocean.items(data, split="test", fold=fold, num_folds=4) for fold in range(4)]
    every = sorted(f"{name}/utt0{number}" for name in AGES for number in (0, 1))
    assert sorted(id for fold in folds for id in fold.ids) == every
    kinds = [(band, sex) for band in ("adult", "child", "teenager") for sex in "fm"]
    for fold, tested in enumerate(folds):
        names = set(map(str, tested.labels))
        assert sorted((known[name].band, known[name].sex) for name in names) == kinds
        trained = speechocean.items(data, split="train", fold=fold, num_folds=4, speeds=(0.9,))
        assert len(trained) == 2 * (48 - len(tested))
    items, trials = speechocean.trials(data, fold=1, num_folds=4)
    assert (len(items), len(trials)) == (12, 66)
    assert trials.target.sum() == 6


def test_damaged_tables_and_other_folds_are_refused(data: Path) -> None:
    with pytest.raises(ValueError, match="fold is 5"):
        speechocean.items(data, fold=5)
    for table in data.rglob("spk2age"):
        table.write_text("0001 old\n")
    for table in data.rglob("speakers.tsv"):
        table.write_text("speaker\tsex\tage\n0001\tx\t6\n")
    with pytest.raises(ValueError, match="no sex f or m and no age"):
        speechocean.items(data)
