"""Galleries of embeddings from elsewhere: no model is loaded, and nothing is mixed."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from likeness import Embeddings, LikenessError, open_gallery
from likeness.embedding.galleries import ELSEWHERE, enrol_embeddings
from likeness.embedding.gallery_search import search_embeddings
from tests.scripts import printed, refused

NAMES = ("ann", "bob", "Zoe\u0308")
IDS = [f"{name}/take {number}.wav" for name in NAMES for number in range(4)]
ROWS = np.repeat(np.eye(3, 8), 4, axis=0) * 5 + np.random.default_rng(0).normal(size=(12, 8))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enrolments in a .parquet of pandas, and probes in a .csv of other columns."""
    monkeypatch.chdir(tmp_path)
    enrolled, probes = slice(0, None, 2), slice(1, None, 2)
    frame = pd.DataFrame({"utt": IDS[enrolled], "xvec": list(ROWS[enrolled])})
    frame.to_parquet("enrolled side.parquet")
    table = pd.DataFrame(ROWS[probes]).add_prefix("dim_")
    table.insert(0, "clip", IDS[probes])
    table.to_csv("probes.csv")  # with a column of row numbers, which has no name
    return tmp_path


def test_what_was_enrolled_is_found(folder):
    said = printed("gallery", "enrol", "--embeddings", "enrolled side.parquet", "--gallery", "g")
    assert said == "6 embeddings of 3 subjects enrolled in g, which has 3 subjects now\n"
    words = ("--gallery", "g", "--columns", "id=clip,vector=dim", "--threshold", "0.5", "-k", "1")
    rows = printed("gallery", "search", "--embeddings", "probes.csv", *words).splitlines()
    found = [row.split(",") for row in rows[1:]]
    assert [row[0] for row in found] == [id.replace("e\u0308", "\u00eb") for id in IDS[1::2]]
    assert all(row[0].startswith(f"{row[2]}/") and row[4] == "true" for row in found)
    items = search_embeddings("g", "probes.csv", by="item", k=2, columns="id=clip").rows
    assert [row.item.split("/")[0] for row in items] == [row.subject for row in items]


def test_subjects_are_of_a_list_or_one(folder):
    plain = Embeddings(tuple(f"u{number}" for number in range(12)), ROWS)
    with pytest.raises(LikenessError, match="12 of 12 ids have no subject"):
        enrol_embeddings("g", plain)
    assert not (folder / "g").exists()
    labels = {name: f"s{number // 4}" for number, name in enumerate(plain.ids)}
    assert enrol_embeddings("g", plain, labels=labels).subjects == 3
    assert enrol_embeddings("one", plain, subject="ann").subjects == 1
    with pytest.raises(ValueError, match="give one of them"):
        enrol_embeddings("one", plain, labels=labels, subject="ann")


def test_existing_subjects_are_added_to_replaced_or_left(folder):
    first, second = Embeddings(IDS[::2], ROWS[::2]), Embeddings(IDS[1::2], ROWS[1::2])
    assert enrol_embeddings("g", first).files == 6
    assert enrol_embeddings("g", first).files == 0  # the very same, as after a kill
    with pytest.raises(LikenessError, match="enrolled already: 3 subjects"):
        enrol_embeddings("g", second)
    assert enrol_embeddings("g", second, existing="skip").skipped == ("ann", "bob", "Zo\u00eb")
    counts, zoe = [], {"subject": "Zoe\u0308"}
    with pytest.raises(LikenessError, match="enrolled already: 1 subject"):
        enrol_embeddings("g", first, **zoe)
    ways = [(second, "add", {}), (second, "replace", {})]
    for rows, existing, of in (*ways, (first, "skip", zoe), (first, "replace", zoe)):
        enrol_embeddings("g", rows, existing=existing, **of)
        with closing(open_gallery("g")) as gallery:
            counts.append([entry.enrolments for entry in gallery.entries()])
    assert counts == [[4, 4, 4], [2, 2, 2], [2, 2, 2], [2, 2, 6]]


def test_embeddings_of_two_models_are_not_mixed(folder):
    table = pd.DataFrame(ROWS[:, :5], index=IDS)
    table.to_csv("short.csv")
    own = Embeddings(IDS, ROWS, {"model": "abc", "similarity": "cosine"})
    own.save("own.npz")
    enrol_embeddings("nameless", "enrolled side.parquet")
    enrol_embeddings("named", "enrolled side.parquet", model_name="resnet50")
    enrol_embeddings("own", "own.npz")
    for gallery, name, words in (
        ("nameless", "short.csv", ["dimensions 8 and not 5"]),
        ("nameless", "own.npz", [ELSEWHERE, "abc"]),
        ("named", "probes.csv", ["resnet50", ELSEWHERE]),
        ("own", "probes.csv", ["abc", ELSEWHERE]),
    ):
        columns = {"columns": "id=clip"} if name == "probes.csv" else {}
        for use, more in ((enrol_embeddings, {"existing": "add"}), (search_embeddings, {})):
            with pytest.raises(LikenessError) as caught:
                use(gallery, name, **columns, **more)
            assert all(word in str(caught.value) for word in words)
    assert search_embeddings("own", "own.npz").enrolled == 3
    same = {"columns": "id=clip", "model_name": "resnet50"}
    assert search_embeddings("named", "probes.csv", **same).enrolled == 3
    with pytest.raises(LikenessError, match="name their model"):
        search_embeddings("own", "own.npz", model_name="abc")


def test_options_of_the_other_way_are_refused(folder):
    place = ("--gallery", "g")
    embedded = ("--embeddings", "probes.csv", *place)
    for words, what in (
        (("enrol", *embedded, "--model", "likeness:voice"), "--model"),
        (("search", "probes.csv", *embedded), "DATA"),
        (("enrol", "probes.csv", *place, "--model-name", "x"), "--model-name"),
        (("enrol", *place), "DATA is missing"),
    ):
        assert what in refused("gallery", *words)


def test_what_a_model_pools_is_no_setting_of_a_gallery_and_thresholds_do_not_come_along(folder):
    meta = {"model": "m", "pooling": "cls"}
    rows = Embeddings(("ann/1", "bob/1"), ROWS[:2], meta)
    assert enrol_embeddings("g", rows).subjects == 2
    assert search_embeddings("g", rows).rows[0].subject == "ann"
    with pytest.raises(LikenessError, match="thresholds"):
        enrol_embeddings("other", Embeddings(rows.ids, ROWS[:2], meta | {"thresholds": "{}"}))
    assert not Path("other").exists()
