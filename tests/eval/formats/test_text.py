"""Text stays text: a name that looks like a number, like nothing or like a truth value is kept by
every reader. A backslash is a slash in each id.

The readers are found; one that is not in READERS or WITHOUT_NAMES fails.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import likeness.eval
from likeness.eval.formats import subjects, trials
from likeness.eval.formats.embeddings import Embeddings, read_embeddings
from likeness.eval.items import item_lists, listing
from likeness.eval.items.item_lists import read_items
from likeness.eval.metrics.calibration import Fusion, load_fusion
from likeness.eval.metrics.failures import read_failures
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.threshold_files import read_thresholds, write_thresholds
from likeness.eval.scoring.thresholds import Threshold, Thresholds
from likeness.eval.types import nfc
from likeness.eval.writing import write_text
from likeness.toolkit.gallery.gallery import open_gallery
from tests.scripts import touch

NAMES = ["nan", "NaN", "inf", "-inf", "true", "False", "null", "None", "NA", "n/a", "<NA>", "007"]
NAMES += ["1e5", "1.0", "+7", "1_000", "yes", "target", "1", "d'Arc", 'O"Brien', "Zoe\u0308", "😀"]
SEPARATORS = ["\t", ",", ";", " "]
Reader = Callable[[Path, Sequence[str]], Iterable[str | None]]


def lines(path: Path, rows: Iterable[Sequence[str]], separator: str) -> Path:
    quoted = [[f'"{f.replace(chr(34), chr(34) * 2)}"' if separator in ",;" else f for f in row]
              for row in rows]  # fmt: skip
    write_text(path, "".join(separator.join(row) + "\n" for row in quoted))
    return path


def as_list(separator: str, *, header: bool) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        rows = [[f"i{k}", f"{k}.wav", name] for k, name in enumerate(names)]
        path = lines(folder / "list.txt", [["id", "path", "label"]] * header + rows, separator)
        assert [*subjects.read_mapping(path).values()] == [nfc(name) for name in names]
        return read_items(path).labels

    return read


def as_mapping(separator: str) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        path = lines(folder / "a", [[f"i{k}", name] for k, name in enumerate(names)], separator)
        back = lines(folder / "b", [[name, f"i{k}"] for k, name in enumerate(names)], separator)
        assert [*subjects.read_mapping(path).values()] == [*subjects.read_mapping(back)]
        assert [*subjects.read_enrolment(back)] == [*subjects.read_mapping(back)]
        return subjects.read_mapping(back)

    return read


def as_trials(separator: str, layout: str) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        rows = []
        for k, name in enumerate(names):
            row = layout.format(name="@", label=k % 2, score=0.25 + k).split()
            rows.append([name if field == "@" else field for field in row])
        path = lines(folder / "list", rows, separator)
        if "score" in layout.replace("0.", ""):
            found = trials.read_scores(path)[0]
            assert "label" not in layout or trials.read_trials(path).enrol_ids == found.enrol_ids
        else:
            found = trials.read_trials(path)
            assert trials.read_pairs(path)[0] == [nfc(name) for name in names]
        return found.enrol_ids

    return read


def as_table(ending: str) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        frame = pd.DataFrame({"path": [f"{k}.wav" for k in range(len(names))], "label": names})
        if ending == "categorical.parquet":
            frame["label"] = frame["label"].astype("category")
        path = folder / f"table.{ending}"
        if ending.endswith("parquet"):
            frame.to_parquet(path, index=False)
        else:
            frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
        return read_items(path).labels

    return read


def as_frame(package: str) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        kind = pytest.importorskip(package).DataFrame
        frame = kind({"path": [f"{k}.wav" for k in range(len(names))], "label": names})
        scored = kind({"enrol": names, "probe": ["x"] * len(names), "label": [1] * len(names)})
        assert trials.read_trials(scored).enrol_ids == tuple(map(nfc, names))
        return read_items(frame, folder).labels

    return read


def of_kaldi(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    write_text(folder / "wav.scp", "".join(f"u{k} {k}.wav\n" for k in range(len(names))))
    write_text(folder / "utt2spk", "".join(f"u{k} {name}\n" for k, name in enumerate(names)))
    return listing.read_kaldi_folder(folder, folder).labels


def of_rttm(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    touch(folder, "call.wav")
    rows = [f"SPEAKER call 1 {k} 1 <NA> <NA> {name} <NA> <NA>\n" for k, name in enumerate(names)]
    write_text(folder / "call.rttm", "".join(rows))
    found = listing.read_rttm(folder / "call.rttm", [".wav"], folder).labels
    return ["<NA>" if label is None else label for label in found]  # the format's own word


def of_folders(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    whole = [name for name in names if "/" not in name]
    touch(folder, *(f"{name}/1.wav" for name in whole))
    assert {*listing.files_below(folder, [".wav"]).labels} == {nfc(name) for name in whole}
    return map(nfc, names)


def of_embeddings(ending: str) -> Reader:
    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        rng = np.random.default_rng(0)
        Embeddings(tuple(names), rng.normal(size=(len(names), 3))).save(folder / f"e{ending}")
        return read_embeddings(folder / f"e{ending}").ids

    return read


def of_numbers(header: str) -> Reader:
    """A column for each dimension."""

    def read(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
        rows = [[name, f"{k}.5", "-1.25"] for k, name in enumerate(names)]
        path = lines(folder / "e.csv", [header.split()] * bool(header) + rows, ",")
        return read_embeddings(path).ids

    return read


def of_npy(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    np.save(folder / "e.npy", np.ones((len(names), 3)))
    write_text(folder / "e.txt", "".join(f"{name}\n" for name in names))
    return read_embeddings(folder / "e.npy").ids


def of_failures(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    write_text(folder / "failed", "".join(f"{name}\tunreadable\n" for name in names))
    found = read_failures(folder / "failed")
    return [nfc(name) for name in names if nfc(name) in found]


def of_json(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    Fusion((1.0,) * len(names), 0.0, tuple(names)).save(folder / "fusion.json")
    origin = Origin("cosine", dict.fromkeys(names, "x"))
    point = Threshold("eer", 0.1, 0.1, 0.5)
    kept = Thresholds(origin, "data", 1, 1, 1, "2026-01-01", (point,), ())
    write_thresholds(folder / "thresholds.json", kept)
    assert [*read_thresholds(folder / "thresholds.json")[0].origin.meta] == [*names]
    return map(nfc, load_fusion(folder / "fusion.json").systems)


def of_gallery(folder: Path, names: Sequence[str]) -> Iterable[str | None]:
    rng = np.random.default_rng(0)
    with closing(open_gallery(folder / "gallery", {"similarity": "cosine"})) as gallery:
        rows = rng.normal(size=(len(names), 3))
        made = Embeddings(tuple(names), rows, {"similarity": "cosine"})
        gallery.enrol(made, list(names))
        enrolled = {entry.subject for entry in gallery.entries()}
    return [nfc(name) for name in names if nfc(name) in enrolled]


LAYOUTS = ["{name} x", "{name} x {label}", "{label} {name} x", "{name} x {score}"]
LAYOUTS += ["{score} {name} x", "{name} x {score} {label}", "{name} x {label} {score}"]
READERS: dict[str, Reader] = {
    **{f"list {s!r} {h}": as_list(s, header=h) for s in SEPARATORS for h in (False, True)},
    **{f"mapping {s!r}": as_mapping(s) for s in SEPARATORS},
    **{f"{layout} {s!r}": as_trials(s, layout) for s in SEPARATORS for layout in LAYOUTS},
    **{e: as_table(e) for e in ("csv", "tsv", "parquet", "categorical.parquet")},
    "pandas": as_frame("pandas"),
    "polars": as_frame("polars"),
    "kaldi": of_kaldi,
    "rttm": of_rttm,
    "folders": of_folders,
    **{ending: of_embeddings(ending) for ending in (".npz", ".ark", ".parquet")},
    ".npy": of_npy,
    **{f".csv {header!r}": of_numbers(header) for header in ("", "id 0 1", "clip emb1 emb2")},
    "failures": of_failures,
    "json": of_json,
    "gallery": of_gallery,
}
# What reads no names of users, or hands them to one of the above.
WITHOUT_NAMES = {
    *("files.read_json", "files.read_mat", "media.read_sound"),
    *("subjects.read_durations", "subjects.read_numbers", "origin.read_origin", "plda.load_plda"),
    *("parquet.read_columns", "tables.read_table", "tables.read_rows", "tables.read_values"),
    "meta_files.read_side",
    *(f"_embedding_files.read_{of}" for of in ("arrays", "parquet", "text", "vectors")),
    *("meta_files.read_faces", "meta_files.read_template_pairs", "meta_files.read_detector_scores"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_name_stays_as_it_is(tmp_path: Path, reader: str) -> None:
    assert list(READERS[reader](tmp_path, NAMES)) == [nfc(name) for name in NAMES]
    for number, name in enumerate(NAMES):  # and alone, where nothing else says what it is
        folder = tmp_path / f"only {number}"
        folder.mkdir()
        assert list(READERS[reader](folder, [name, "x y"[:1]])) == [nfc(name), "x"]


def test_every_reader_is_tested() -> None:
    source, found = inspect.getsource(inspect.getmodule(of_kaldi)), set()
    for package in pkgutil.walk_packages(likeness.eval.__path__, "likeness.eval."):
        module = importlib.import_module(package.name)
        for name, function in vars(module).items():
            is_reader = name.startswith(("read", "load_"))
            if is_reader and getattr(function, "__module__", "") == module.__name__:
                found.add(f"{package.name.rpartition('.')[2]}.{name}")
    unknown = {name for name in found if f"{name.rpartition('.')[2]}(" not in source}
    assert unknown == WITHOUT_NAMES


def test_numbers_of_a_table_are_names(tmp_path: Path) -> None:
    """Whole numbers have no point, whatever a table made of them."""
    for labels in ([7, 100000], [7.0, 1e5], np.array([7, 100000])):
        frame = pd.DataFrame({"path": ["a.wav", "b.wav"], "label": labels})
        frame.to_parquet(tmp_path / "t.parquet")
        assert read_items(tmp_path / "t.parquet").labels == ["7", "100000"]
        assert read_items(frame, tmp_path).labels == ["7", "100000"]


def test_a_backslash_is_a_slash_in_every_id(tmp_path: Path) -> None:
    windows, other = r"ann\1.wav", "ann/1.wav"
    ids = [windows, r"bob\1.wav"]
    path = lines(tmp_path / "trials", [[*ids, "0"], [windows, windows, "1"]], " ")
    assert trials.read_trials(path).enrol_ids == (other,)
    assert subjects.read_mapping(lines(tmp_path / "m", [[windows, "a\\b"]], " ")) == {other: "a\\b"}
    enrolment = lines(tmp_path / "n", [["m", *ids]], " ")
    assert subjects.read_enrolment(enrolment) == {"m": (other, "bob/1.wav")}
    assert read_failures(path) == {other}
    embedded = Embeddings(tuple(ids), np.eye(2))
    assert embedded.rows([other, "bob/1.wav"]).tolist() == [0, 1]
    embedded.save(tmp_path / "e.npz")
    assert read_embeddings(tmp_path / "e.npz").ids == (other, "bob/1.wav")
    listed = read_items(lines(tmp_path / "l", [[windows], [r"C:\bob\1.wav"]], ","))
    assert listed.ids == [other, "C:/bob/1.wav"]
    assert listed[0].path == tmp_path / "ann" / "1.wav"


def test_a_path_has_the_form_of_the_file(tmp_path: Path) -> None:
    touch(tmp_path, "Zoe\u0308/1.wav", "we\\ird.wav")
    names = ["Zo\u00eb/1.wav", "Zo\u00eb\\1.wav", "we\\ird.wav", "Zo\u00eb/2.wav"]
    expected = ["Zoe\u0308/1.wav"] * 2 + names[2:]
    found = item_lists.listed_paths(tmp_path, names)
    assert found == [f"{tmp_path.as_posix()}/{name}" for name in expected]
