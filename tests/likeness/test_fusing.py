"""`likeness score --fuse`: fitted on one list, applied to another, on files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.calibration import load_fusion
from likeness.eval.formats.embeddings import write as write_embeddings
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.types import Embeddings, Trials
from tests.scripts import run_command

IDS = tuple(f"{name}/{number}" for name in "abcdef" for number in (1, 2, 3))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the scores of two systems on two lists; rows of the second are in reverse."""
    i, j = np.triu_indices(len(IDS), k=1)
    target = np.array([IDS[a][0] == IDS[b][0] for a, b in zip(i, j, strict=True)])
    for number, name in enumerate(("dev", "test")):
        rng = np.random.default_rng(number)
        first, second = (target + 0.4 * rng.standard_normal(len(i)) for _ in range(2))
        write_scores(tmp_path / f"{name}1.txt", Trials(IDS, IDS, i, j, target), first)
        backwards = Trials(IDS, IDS, i[::-1], j[::-1], target[::-1])
        write_scores(tmp_path / f"{name}2.txt", backwards, second[::-1])
        write_scores(tmp_path / f"blind{name}2.txt", Trials(IDS, IDS, i, j), second)
    matrix = np.random.default_rng(2).standard_normal((len(IDS), 4)).astype(np.float32)
    write_embeddings(tmp_path / "embeddings.npz", Embeddings(IDS, matrix))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fitted_on_one_list_and_applied_to_another(place: Path) -> None:
    fitting = ("fit", "fusion", "dev1.txt", "dev2.txt", "--out", "fusion.json")
    assert run_command(*fitting) == 0
    fusion = load_fusion("fusion.json")
    applying = ("--fusion", "fusion.json", "--out", "fused.txt")
    assert run_command("score", "test1.txt", "test2.txt", *applying) == 0
    trials, first = read_scores("test1.txt")
    second = read_scores("test2.txt")[1][::-1]
    expected = fusion.weights[0] * first + fusion.weights[1] * second + fusion.offset
    fused_trials, fused = read_scores("fused.txt")
    np.testing.assert_allclose(fused, expected, rtol=1e-12, atol=1e-12)
    assert fused_trials.target is not None
    assert (fused_trials.target == trials.target).all()


def test_quality_measures_enter_the_fusion(place: Path) -> None:
    quality = ("--quality", "log_norm", "--embeddings", "embeddings.npz")
    fitting = ("fit", "fusion", "dev1.txt", "dev2.txt", "--out", "fusion.json")
    assert run_command(*fitting, *quality) == 0
    assert load_fusion("fusion.json").names == ("log_norm_low", "log_norm_high")
    applying = ("score", "test1.txt", "test2.txt", "--fusion", "fusion.json")
    assert run_command(*applying, "--out", "fused.txt") == 2
    assert not Path("fused.txt").exists()
    assert run_command(*applying, "--embeddings", "embeddings.npz", "--out", "fused.txt") == 0


def test_labels_may_stand_in_any_of_the_files(place: Path) -> None:
    assert run_command("fit", "fusion", "blinddev2.txt", "dev1.txt", "--out", "fusion.json") == 0
    assert (
        run_command("fit", "fusion", "blinddev2.txt", "blindtest2.txt", "--out", "other.json") == 2
    )
    assert not Path("other.json").exists()


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        (("fit", "fusion", "dev1.txt"), "two score files"),
        (("fit", "fusion", "dev1.txt", "other.txt"), "other.txt"),
        (("score", "dev1.txt"), "--fusion only"),
        (("score",), "--trials and --embeddings"),
    ],
)
def test_wrong_use_is_said(
    place: Path, arguments: tuple[str, ...], keyword: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scores("other.txt", Trials(("a",), ("b", "c"), [0, 0], [0, 1], [True, False]), [1.0, 0.0])
    assert run_command(*arguments, "--out", "fusion.json") == 2
    assert keyword in capsys.readouterr().err
    assert not Path("fusion.json").exists()
