"""Names that are read from files are the same where they look the same: they become Unicode NFC.

Paths stay as the disk has them. That every reader does so: tests/eval/formats/test_text.py.
"""

from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from likeness import Embeddings, Trials, open_gallery
from likeness.eval.formats.files import as_stored
from likeness.eval.formats.trials import read_trials, write_trials
from likeness.eval.items.item_lists import read_items
from likeness.eval.items.items import Item, Items, check_unique
from likeness.eval.items.listing import read_rttm
from likeness.eval.protocols.lfw import read_pairs
from likeness.eval.reports.media import media_of_folder
from likeness.modalities.face._pairs import find_images

NFC, NFD = normalize("NFC", "Zoë"), normalize("NFD", "Zoë")


def embedded(*ids: str) -> Embeddings:
    return Embeddings(ids, np.random.default_rng(0).standard_normal((len(ids), 4)))


@pytest.mark.parametrize("name", ["t.txt", "t.parquet"])
def test_one_id_in_two_forms_is_one_id_of_a_list(tmp_path, name):
    trials = Trials((NFC, NFD), ("ann", "bob"), [0, 1, 0], [0, 1, 1])
    write_trials(tmp_path / name, trials)
    trials = read_trials(tmp_path / name)
    assert trials.enrol_ids == (NFC,)
    assert trials.enrol.tolist() == [0, 0, 0]


def test_items_whose_ids_become_equal_are_refused():
    items = Items.of(Item(value, Path(f"{value}.wav")) for value in (NFC, "ann", NFD))
    with pytest.raises(ValueError, match="twice"):
        check_unique(items, "here")


def test_items_keep_their_paths_and_compare_their_names():
    (item,) = Items.of([Item(NFD, Path(NFD), NFD)])
    assert (item.id, item.path, item.label) == (NFC, Path(NFD), NFC)


def test_files_are_opened_by_the_name_on_the_disk(tmp_path):
    place = tmp_path / NFD / f"{NFD}_0001.jpg"
    place.parent.mkdir()
    Image.new("RGB", (9, 9)).save(place)
    if (tmp_path / NFC).exists():
        pytest.skip("this file system finds a name in either form")
    (tmp_path / "pairs.txt").write_text(f"1\t1\n{NFD}\t1\t1\n{NFC}\t1\tann\t1\n", encoding="utf-8")
    trials, _ = read_pairs(tmp_path / "pairs.txt", suffix=".jpg")
    with pytest.raises(ValueError, match=r"1 of 2 .*ann"):
        find_images(trials, tmp_path)
    id = f"{NFC}/{NFC}_0001"
    (result,) = find_images(Trials((id,), (id,), [0], [0]), tmp_path)
    assert (result.id, result.path) == (id, place)
    assert as_stored(tmp_path, f"{NFC}/none.jpg") == f"{NFC}/none.jpg"
    (tmp_path / NFD / NFC).mkdir()
    assert as_stored(tmp_path, f"{NFD}/{NFD}/") == f"{NFD}/{NFC}"
    assert "<img" in media_of_folder(tmp_path).show(id)
    (tmp_path / "list.txt").write_text(f"{NFD}/{NFD}_0001.jpg\n", encoding="utf-8")
    (listed,) = read_items(tmp_path / "list.txt")
    assert (listed.id, listed.path) == (f"{id}.jpg", place)


@pytest.mark.parametrize(("listed", "stored"), [(NFC, NFD), (NFD, NFC)])
def test_turns_find_recordings_in_the_other_form(tmp_path, listed, stored):
    (tmp_path / f"{stored}.wav").touch()
    line = f"SPEAKER {listed} 1 0 2 <NA> <NA> {listed} <NA> <NA>\n"
    (tmp_path / "m.rttm").write_text(line, encoding="utf-8")
    (item,) = read_rttm(tmp_path / "m.rttm", [".wav"], tmp_path)
    assert (item.label, item.path) == (NFC, tmp_path / f"{stored}.wav")


def test_galleries_know_people_in_either_form(tmp_path):
    rows = embedded("a", "b")
    gallery = open_gallery(tmp_path, {})
    gallery.enrol(Embeddings(("a",), rows.matrix[:1]), [NFD])
    gallery.enrol(Embeddings(("b",), rows.matrix[1:]), [NFC])
    assert [(entry.subject, entry.enrolments) for entry in gallery.entries()] == [(NFC, 2)]
    gallery.update(Embeddings(("b",), rows.matrix[1:]), [NFD])
    assert gallery.search(rows, 1)[1][0].subject == NFC
    gallery.remove([NFD])
    gallery.close()
    gallery = open_gallery(tmp_path, {})
    assert len(gallery) == 0
    gallery.close()
