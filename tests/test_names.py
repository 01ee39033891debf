"""Names that look the same are the same: Unicode NFC wherever text becomes a key.

Paths stay as the disk has them.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from eval.formats import embeddings as files
from eval.formats.files import as_stored
from eval.formats.subjects import read_mapping, subjects_of
from eval.formats.trials import read_scores, read_trials, write_scores
from eval.groups import sides_of
from eval.protocols.lfw import read_pairs
from eval.reports.media import media_of_folder_or_list
from eval.scoring.templates import enrol, pool, read_enrolment
from eval.similarity import score_trials
from eval.types import Embeddings, Trials
from modalities.face.pairs import find_images
from toolkit.data.item_checks import check_unique, label_numbers
from toolkit.data.item_lists import read_items
from toolkit.data.items import Item
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.store import Enrolments

ONE = np.zeros(1, np.int32), np.zeros(1, np.int32)
NFC, NFD = normalize("NFC", "Zoë"), normalize("NFD", "Zoë")


def embedded(*ids: str) -> Embeddings:
    return Embeddings(ids, np.random.default_rng(0).standard_normal((len(ids), 4)))


def test_the_two_forms_differ() -> None:
    assert NFC != NFD


@pytest.mark.parametrize(("listed", "stored"), [(NFC, NFD), (NFD, NFC)])
def test_a_trial_list_finds_embeddings_subjects_and_groups_in_the_other_form(
    tmp_path: Path, listed: str, stored: str
) -> None:
    (tmp_path / "trials.txt").write_text(
        f"{listed}/1 {listed}/2 1\nann/1 {listed}/2 0\n", encoding="utf-8"
    )
    (tmp_path / "subjects.txt").write_text(
        f"{stored}/1 {stored}\n{listed}/2 {listed}\nann/1 ann\n", encoding="utf-8"
    )
    (tmp_path / "groups.txt").write_text(f"{stored} old\nann young\n", encoding="utf-8")
    files.write(tmp_path / "e.npz", embedded(f"{stored}/1", f"{stored}/2", "ann/1"))
    trials = read_trials(tmp_path / "trials.txt")
    scores = score_trials(trials, files.read(tmp_path / "e.npz"))
    first = np.array([0, 1], np.int32), np.array([0, 0], np.int32)
    write_scores(
        tmp_path / "scores.txt",
        Trials((f"{stored}/1", "ann/1"), (f"{stored}/2",), *first, np.array([True, False])),
        scores,
    )
    np.testing.assert_array_equal(read_scores(tmp_path / "scores.txt", trials)[1], scores)
    mapping = read_mapping(tmp_path / "subjects.txt")
    for inputs in (
        mapping,
        {normalize("NFD", key): normalize("NFD", value) for key, value in mapping.items()},
    ):
        subjects, how = subjects_of(trials, inputs)
        assert how == "given mapping"
        assert subjects is not None
        assert subjects[0].tolist() == [0, 1]
        assert sides_of(trials, read_mapping(tmp_path / "groups.txt"), inputs)[0].tolist() == [
            [0, 0],
            [1, 0],
        ]


def test_one_id_in_two_forms_is_one_id_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "trials.txt"
    path.write_text(f"{NFC} ann 1\n{NFD} bob 0\n{NFC} bob 0\n", encoding="utf-8")
    trials = read_trials(path)
    assert trials.enrol_ids == (NFC,)
    assert trials.enrol.tolist() == [0, 0, 0]
    direct = Trials(
        (NFC, "x", NFD), ("y", NFD), np.array([2, 1, 0], np.int32), np.array([0, 1, 1], np.int32)
    )
    assert (direct.enrol_ids, direct.probe_ids) == ((NFC, "x"), ("y", NFC))
    assert direct.enrol.tolist() == [0, 1, 0]
    path.write_text(f"{NFC} ann 1\n{NFD} ann 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="both"):
        read_trials(path)


def test_items_whose_ids_become_equal_are_refused_and_named() -> None:
    with pytest.raises(ValueError, match="twice"):
        embedded(NFC, "ann", NFD)
    with pytest.raises(ValueError, match="twice"):
        check_unique([Item(value, Path(f"{value}.wav")) for value in (NFC, "ann", NFD)], "here")
    with pytest.raises(ValueError, match="another name"):
        subjects_of(Trials((NFC,), ("ann",), *ONE), {NFC: "a", NFD: "b", "ann": "c"})


def test_an_item_keeps_its_path_and_compares_its_names() -> None:
    item = Item(NFD, Path(NFD), NFD)
    assert (item.id, item.path, item.label) == (NFC, Path(NFD), NFC)
    assert pickle.loads(pickle.dumps(item)) == item == item._replace(id=NFD)
    assert type(item._replace(path=Path("x"))) is Item
    assert label_numbers([item, Item("2", Path("x"), NFC)])[0] == (NFC,)


def test_files_are_opened_by_the_name_on_the_disk(tmp_path: Path) -> None:
    place = tmp_path / NFD / f"{NFD}_0001.jpg"
    place.parent.mkdir()
    Image.new("RGB", (9, 9)).save(place)
    if (tmp_path / NFC).exists():
        pytest.skip("this file system finds a name in either form")
    (tmp_path / "pairs.txt").write_text(f"1\t1\n{NFC}\t1\t1\n{NFC}\t1\tann\t1\n", encoding="utf-8")
    trials, _ = read_pairs(tmp_path / "pairs.txt", suffix=".jpg")
    with pytest.raises(ValueError, match=r"1 of 2 .*ann"):
        find_images(trials, tmp_path)
    result = find_images(Trials((f"{NFD}/{NFD}_0001",), (f"{NFC}/{NFC}_0001",), *ONE), tmp_path)
    assert [(item.id, item.path) for item in result] == [(f"{NFC}/{NFC}_0001", place)]
    assert result[0].open().read(2) == b"\xff\xd8"
    assert as_stored(tmp_path, f"{NFC}/none.jpg") == tmp_path / NFC / "none.jpg"
    assert "<img" in media_of_folder_or_list(tmp_path).show(f"{NFC}/{NFC}_0001")
    (tmp_path / "list.txt").write_text(f"{NFD}/{NFD}_0001.jpg\n", encoding="utf-8")
    assert [(item.id, item.path) for item in read_items(tmp_path / "list.txt")] == [
        (f"{NFC}/{NFC}_0001.jpg", place)
    ]


def test_models_and_templates(tmp_path: Path) -> None:
    (tmp_path / "spk2utt").write_text(f"{NFC} {NFD}/1 {NFC}/2\n", encoding="utf-8")
    models = read_enrolment(tmp_path / "spk2utt")
    assert models == {NFC: (f"{NFC}/1", f"{NFC}/2")}
    rows = embedded(f"{NFD}/1", f"{NFC}/2")
    assert enrol(rows, models).ids == (NFC,)
    assert pool(rows, np.array([NFD, NFC])).ids == (NFC,)


def test_galleries_know_people_in_either_form(tmp_path: Path) -> None:
    rows = embedded("a", "b")
    # as an earlier version wrote it
    store = Enrolments(tmp_path, {}, {"similarity": "cosine", "pooling": "mean"})
    store.write([NFD], rows.matrix[:1], replace=False)
    store.close()
    gallery = ExactGallery(tmp_path)
    gallery.enrol(Embeddings(("b",), rows.matrix[1:]), [NFC])
    assert [(entry.subject, entry.enrolments) for entry in gallery.entries()] == [(NFC, 2)]
    gallery.update(Embeddings(("b",), rows.matrix[1:]), [NFD])
    assert gallery.search(rows, 1)[1][0].subject == NFC
    gallery.remove([NFD])
    gallery.close()
    gallery = ExactGallery(tmp_path)
    assert len(gallery) == 0
    gallery.close()
