"""Values of single items and the metrics on them: intervals against a slow loop and against closed
forms, files whole and damaged.
"""

from __future__ import annotations

import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from likeness.eval import classification, per_item
from likeness.eval.bootstrap import Drawn, bounds
from likeness.eval.errors import LikenessError
from likeness.eval.formats import files
from likeness.eval.per_item import PerItem


def measured(
    columns: dict[str, list[float]], groups: list[int] | None = None, over: str = "classes"
) -> PerItem:
    arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
    size = len(next(iter(arrays.values())))
    return PerItem(
        tuple(f"item{i}" for i in range(size)),
        arrays,
        None if groups is None else np.array(groups, dtype=np.int32),
        over,
    )


VALUES = st.lists(st.one_of(st.floats(-10, 10), st.just(float("nan"))), min_size=1, max_size=12)


@given(VALUES)
def test_mean_leaves_out_what_has_no_value(values: list[float]) -> None:
    there = [value for value in values if value == value]
    result = partial(per_item.mean, column="x")({"x": np.array(values)})
    assert (
        result == pytest.approx(sum(there) / len(there), abs=1e-12) if there else np.isnan(result)
    )


def test_metrics_of_classification_are_taken_of_their_columns() -> None:
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(12), rng.integers(0, 2, 12).astype(np.float64)
    columns = {"scaled": confidence, "norm": confidence, "correct": correct}
    found = per_item.calibration_error(columns, confidence="scaled", num_bins=3, power=2)
    assert found == classification.ece(confidence, correct, num_bins=3, power=2)
    assert per_item.norm_auroc(columns) == classification.auroc(confidence, correct)
    queries = {"norm": confidence, "recall@1": np.where(correct == 1, 0.5, np.nan)}
    assert np.isnan(per_item.norm_auroc(queries, correct="recall@1"))


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(-3, 3)), min_size=1, max_size=15),
    st.booleans(),
    st.integers(0, 3),
)
def test_resamples_are_those_of_a_slow_loop(
    items: list[tuple[float, int]], grouped: bool, seed: int
) -> None:
    values, groups = [value for value, _ in items], [group for _, group in items]
    first = measured({"x": values, "y": values[::-1]}, groups if grouped else None)
    result = per_item.resample(
        {"x": partial(per_item.mean, column="x"), "size": lambda columns: float(columns["x"].size)},
        first,
        num_resamples=6,
        seed=seed,
    )
    members = (
        [[i for i, group in enumerate(groups) if group == name] for name in sorted(set(groups))]
        if grouped
        else [[i] for i in range(len(values))]
    )
    rng = np.random.default_rng(seed)
    for number in range(6):
        rows = [
            i for drawn in rng.integers(len(members), size=len(members)) for i in members[drawn]
        ]
        assert result["x"][number] == pytest.approx(
            sum(values[i] for i in rows) / len(rows), abs=1e-12
        )
        assert result["size"][number] == len(rows)
    assert first.num_groups == len(members)


def test_draws_without_a_value_are_nan_and_left_out() -> None:
    """One wrong item of 5: (4/5)^5 of the draws lose it, and have no AUROC."""
    first = measured({"norm": [5.0, 4.0, 3.0, 2.0, 1.0], "correct": [1.0, 1.0, 1.0, 1.0, 0.0]})
    values = per_item.resample({"auroc": per_item.norm_auroc}, first, num_resamples=2000)["auroc"]
    share = 0.8**5 + 0.2**5  # or all are the wrong one
    assert np.isnan(values).mean() == pytest.approx(
        share, abs=4 * (share * (1 - share) / 2000) ** 0.5
    )
    assert "same value" in bounds(values, 1.0, 0.95, Drawn(40, "items")).note


def test_the_digest_is_of_what_was_measured_not_of_the_values() -> None:
    first = measured({"x": [1.0, 2.0]}, [0, 1])
    assert first.digest == measured({"x": [3.0, 4.0], "y": [0.0, 0.0]}, [0, 1]).digest
    others = [
        measured({"x": [1.0, 2.0]}),
        measured({"x": [1.0, 2.0]}, [0, 0]),
        measured({"x": [1.0, 2.0]}, [0, 1], "items"),
        measured({"x": [1.0]}, [0]),
    ]
    assert len({first.digest, *(other.digest for other in others)}) == 5


def test_lengths_must_agree() -> None:
    for ids, columns in ((("a", "b"), {"x": np.zeros(3)}), ((), {})):
        with pytest.raises(LikenessError):
            PerItem(ids, columns, None, "items")
    with pytest.raises(LikenessError):
        PerItem(("a", "b"), {"x": np.zeros(2)}, np.zeros(1, dtype=np.int32), "classes")


# numpy's text ends before trailing NULs, and no id holds one
IDS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
    max_size=5,
    unique=True,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(IDS, st.booleans(), st.data())
def test_what_is_written_is_read(
    tmp_path: Path, ids: list[str], grouped: bool, data: st.DataObject
) -> None:
    values = np.array(data.draw(st.lists(st.floats(), min_size=len(ids), max_size=len(ids))))
    embedded = PerItem(
        tuple(ids),
        {"map@r": values},
        np.arange(len(ids), dtype=np.int32) if grouped else None,
        "classes",
    )
    per_item.write(tmp_path / "test.npz", embedded)
    loaded = per_item.read(tmp_path / "test.npz")
    assert (loaded.ids, loaded.over, loaded.digest) == (
        embedded.ids,
        embedded.over,
        embedded.digest,
    )
    assert (loaded.groups is None) == (not grouped)
    np.testing.assert_array_equal(loaded.columns["map@r"], values)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test.npz"
    names, over = np.array(["a", "b"]), np.array('"items"')
    for arrays in (
        {"over": over, "column.x": np.zeros(2)},
        {"over": over, "ids": names, "column.x": np.zeros(3)},
        {"over": over, "ids": names, "column.x": np.array([{}, {}], dtype=object)},
    ):
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(LikenessError):
            per_item.read(path)
    path.write_text("no archive")
    with pytest.raises(LikenessError):
        per_item.read(path)
    with pytest.raises(FileNotFoundError):
        per_item.read(tmp_path / "absent.npz")
    monkeypatch.setattr(files, "FREE_EXPANSION", 1000)
    monkeypatch.setattr(files, "EXPANSION", 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ids.npy", bytes(2000))
    with pytest.raises(LikenessError):
        per_item.read(path)
