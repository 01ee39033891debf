"""What goes with labels: the two measures against counting and the analysis of variance of SciPy;
folders with a rate, a format, a level, a duration or a device of some speakers' own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import f_oneway

from likeness.checking._confounds import find, goodman_kruskal, intraclass
from likeness.checking._files import Seen
from likeness.checking.check import Finding, check
from likeness.eval.items.items import Item, Items
from likeness.toolkit.data.reading import Header
from tests.scripts import run_command
from tests.sounds import chatter

SPEAKERS = [f"spk{k}" for k in range(6)]


def write(folder: Path, odd: str = "", *, mixed: bool = False, files: int = 4) -> Path:
    """Six speakers; what is odd is so for the first two, or where it is mixed for the first third
    of the recordings of each.
    """
    rng = np.random.default_rng(0)
    for k, name in enumerate(SPEAKERS):
        (folder / name).mkdir(parents=True)
        for i in range(files):
            is_odd = odd if (i < files // 3 if mixed else k < 2) else ""
            rate_hz = 8_000 if is_odd == "rate in Hz" else 16_000
            seconds = (2.0 if is_odd == "duration" else 0.5) * rng.uniform(0.9, 1.1)
            level = (0.01 if is_odd == "level" else 0.1) * rng.uniform(0.8, 1.2)
            suffix = ".flac" if is_odd == "format" else ".wav"
            wave = chatter(seconds, rate_hz, int(rng.integers(2**31)), level)
            soundfile.write(folder / name / f"{i}{suffix}", wave, rate_hz)
    return folder


def confounds_in(data: Path) -> list[Finding]:
    return [of for of in check(data).findings if of.kind == "goes-with-label"]


@pytest.mark.parametrize("odd", ["rate in Hz", "format", "level", "duration"])
def test_what_goes_with_some_speakers_is_found(odd: str, tmp_path: Path) -> None:
    (finding,) = confounds_in(write(tmp_path / "apart", odd))
    assert sorted(group[0] for group in finding.groups) == SPEAKERS[:2]
    assert odd in finding.text
    assert confounds_in(write(tmp_path / "mixed", odd, mixed=True, files=6)) == []
    assert confounds_in(write(tmp_path / "single", odd, files=1)) == []


def test_a_device_of_a_table_is_found_and_the_sex_is_not(tmp_path: Path) -> None:
    write(tmp_path)
    rows = [
        f"{name}/{i}.wav,{name},{'fm'[k % 2]},{'phone' if k < 3 else 'studio'}"
        for k, name in enumerate(SPEAKERS)
        for i in range(4)
    ]
    table = tmp_path / "items.csv"
    table.write_text("\n".join(["path,speaker,sex,device", *rows]) + "\n")
    (finding,) = confounds_in(table)
    assert "device" in finding.text
    assert finding.count == 3


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=2, max_size=30).filter(
        lambda rows: len({value for value, _ in rows}) > 1
    )
)
def test_lambda_is_what_counting_gives(rows: list[tuple[int, int]]) -> None:
    values, labels = zip(*rows, strict=True)
    of_label = defaultdict(list)
    for value, label in rows:
        of_label[label].append(value)
    missed = len(rows) - Counter(values).most_common(1)[0][1]
    still = len(rows) - sum(Counter(of).most_common(1)[0][1] for of in of_label.values())
    assert goodman_kruskal(values, labels) == pytest.approx((missed - still) / missed)


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 99))
def test_the_correlation_is_that_of_the_f_ratio(num: int, size: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(num, size)) + np.arange(num)[:, None]
    ratio = float(f_oneway(*values).statistic)
    correlation, between = intraclass(values.ravel(), np.repeat(np.arange(num), size))
    assert correlation == pytest.approx(max(0.0, (ratio - 1) / (ratio + size - 1)))
    within = values.var(axis=1, ddof=1).mean()
    assert between**2 == pytest.approx(max(0.0, values.mean(1).var(ddof=1) - within / size))


def test_formats_by_chance_are_not_named() -> None:
    rng, named = np.random.default_rng(0), 0
    for _ in range(400):
        labels = np.repeat(np.arange(4), 2).tolist()
        items = Items.of(Item(f"{k}", Path(f"{k}"), f"s{of}") for k, of in enumerate(labels))
        formats = rng.choice(["WAV", "FLAC"], size=8)
        named += bool(find(items, [Seen(Header(str(of), 1)) for of in formats]))
    assert named <= 400 * 0.005 + 3  # of 400 such sets two are expected at most


def test_training_names_the_findings_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "data", "format")
    recipe = tmp_path / "mine.py"
    recipe.write_text("from tests.tiny import RECIPES as RECIPES\n", encoding="utf-8")
    command = ["train", f"{recipe}:arcface", "--data", data, "--out", tmp_path / "run"]
    assert run_command(*command) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "format" in line]
    assert len(lines) == 1
    assert "gives away: 2." in lines[0]
    assert (tmp_path / "run" / "last.safetensors").is_file()
