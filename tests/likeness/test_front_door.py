"""`import likeness`: what it offers, what it costs, and everything that it takes as an input."""

import importlib
import inspect
import io
import pkgutil
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from torch import nn

import likeness
import likeness.toolkit.backbones
import likeness.toolkit.losses
from likeness.data import Item, folders, write_trials
from likeness.modalities.face import images
from likeness.models.inputs import items_of
from likeness.toolkit import console
from likeness.toolkit.backbones.image_resnet import SmallCNN
from likeness.toolkit.data.pixels import PixelScale
from tests import tiny
from tests.scripts import printed, run_command
from tests.sounds import chatter


@pytest.fixture(scope="module")
def model(run: Path) -> likeness.Model:
    return likeness.load(run)


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> likeness.Model:
    parts = {"frontend": partial(PixelScale, mean=(0.0,) * 3, std=(1.0,) * 3)}
    parts |= {"backbone": partial(SmallCNN, dim=4), "read": partial(images.read, size=(28, 28))}
    recipe = replace(tiny.BASE, modality="face", **parts)
    return likeness.load(tiny.untrained(tmp_path_factory.mktemp("faces"), recipe))


def wave_of(file: Path) -> tuple[np.ndarray, int]:
    wave, rate_hz = soundfile.read(file, dtype="float32")
    return wave, rate_hz


def same(first: likeness.Embeddings, second: likeness.Embeddings) -> None:
    np.testing.assert_allclose(first.matrix, second.matrix, rtol=0, atol=1e-4)


def test_every_public_name_exists_and_is_documented():
    assert set(likeness.__all__) <= set(dir(likeness))
    for name in likeness.__all__:
        value = getattr(likeness, name)
        assert name == "__version__" or inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="nonsense"):
        _ = likeness.nonsense


@pytest.mark.parametrize(
    "room", [likeness.toolkit.losses, likeness.toolkit.backbones], ids=["losses", "backbones"]
)
def test_the_flat_lists_are_complete(room):
    """Every public network or loss of the room is in the flat list, and none of their parts."""
    listed = getattr(likeness, room.__name__.rpartition(".")[2])
    modules = [info.name for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    values = [value for name in modules for value in vars(importlib.import_module(name)).values()]
    parts = [of for of in values if inspect.isclass(of) and issubclass(of, nn.Module)]
    names = {of.__name__ for of in parts if of.__module__ in modules}
    classes = {name for name in names if name[0] != "_"} - {"KeyBank", "BasicBlock"}
    assert {name for name in dir(listed) if name[0] != "_"} == classes


def test_a_folder_a_list_and_a_table_give_the_same(model, voices, tmp_path):
    folder = model.embed(voices)
    names = [item.id for item in folders.items(voices, split="all")]
    assert sorted(folder.ids) == list(folder.ids)
    assert f"{len(folder)} items, {model.dim} dimensions" in repr(folder)
    assert {Path(name).stem for name in folder.ids} == {Path(name).stem for name in names}
    some = folder.ids[:3]
    rows = folder.matrix[:3]

    (tmp_path / "list.txt").write_text("".join(f"{name}\n" for name in some))
    rows_of_table = [f"x,{name},n{i}\n" for i, name in enumerate(some)]
    (tmp_path / "table.csv").write_text("".join(["label,path,id\n", *rows_of_table]))
    paths = [voices / name for name in some]
    for ids, other in (
        (some, model.embed(tmp_path / "list.txt", root=voices)),
        (("n0", "n1", "n2"), model.embed(str(tmp_path / "table.csv"), root=str(voices))),
        (tuple(map(str, paths)), model.embed(list(map(str, paths)))),
        (some, model.embed(list(some), root=voices)),
        (some, model.embed([Item(name, voices / name) for name in some])),
        (("a", "b", "3"), model.embed(dict(zip(("a", "b", 3), paths, strict=True)))),
    ):
        assert other.ids == ids
        np.testing.assert_allclose(other.matrix, rows, rtol=0, atol=1e-4)
        assert other.meta == folder.meta == model.meta


def test_arrays_tensors_and_open_files_are_read_as_the_file_is(model, voices):
    file = sorted(voices.rglob("*.flac"))[0]
    wave, rate_hz = wave_of(file)
    whole = model.embed(file)
    assert whole.ids == (str(file),)
    same(model.embed(wave, rate_hz=rate_hz), whole)
    same(model.embed((wave, rate_hz)), whole)
    same(model.embed([(torch.from_numpy(wave)[None], rate_hz)]), whole)
    same(model.embed(np.stack([wave, wave], axis=1), rate_hz=rate_hz), whole)
    same(model.embed((wave * 32768).astype(np.int16), rate_hz=rate_hz), whole)
    with file.open("rb") as opened:
        same(model.embed(opened), whole)
    same(model.embed([io.BytesIO(file.read_bytes())]), whole)
    assert model.embed([wave, wave], rate_hz=rate_hz).ids == ("0", "1")


def test_images_as_arrays(faces, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "face.png")
    whole = faces.embed(tmp_path / "face.png")
    same(faces.embed(pixels), whole)
    same(faces.embed([torch.from_numpy(pixels).permute(2, 0, 1)]), whole)
    same(faces.embed(Image.fromarray(pixels)), whole)
    same(faces.embed({"x": io.BytesIO((tmp_path / "face.png").read_bytes())}), whole)
    grey = faces.verify(pixels[..., 0], pixels[..., 0])
    assert grey.score == pytest.approx(1, abs=1e-6)
    for wrong in (pixels / 255, pixels[None]):
        with pytest.raises(ValueError, match="image"):
            faces.embed(wrong)


NOISE = chatter(1.0)


@pytest.mark.parametrize(
    ("inputs", "options", "word"),
    [
        (["no.wav", "none.wav"], {}, "does not exist"),
        ("nowhere", {}, "nowhere"),
        ([], {}, "nothing"),
        ([3], {}, "int"),
        (np.zeros((100, 100), np.float32), {}, "shape"),
        (np.zeros(16000, np.uint8), {}, "int16 or int32"),
        (io.BytesIO(b"no sound"), {}, "none of 1"),
        (np.zeros(16000, np.float32), {}, "silent"),
        (np.full(16000, np.nan, np.float32), {}, "NaN"),
        *((NOISE, {"rate_hz": rate_hz}, "rate") for rate_hz in (None, 0, 16000.5, float("nan"))),
        (NOISE, {"flip": "sum"}, "flip"),
        (NOISE, {"flip": "up"}, "choose"),
        (NOISE, {"crops": 2, "chunk_seconds": 5.0}, "one of them"),
        (NOISE, {"chunk_seconds": 0.3}, "chunk_seconds"),
    ],
)
def test_what_cannot_be_embedded(model, inputs, options, word):
    with pytest.raises(ValueError, match=word):
        model.embed(inputs, **{"rate_hz": 16000, **options})


def test_unreadable_files_are_counted_and_left_out(model, voices, tmp_path):
    good = sorted(voices.rglob("*.flac"))[0]
    (tmp_path / "good.flac").write_bytes(good.read_bytes())
    (tmp_path / "bad.flac").write_bytes(b"fLaC")
    (tmp_path / ".hidden.flac").write_bytes(b"fLaC")
    (tmp_path / "notes.txt").write_text("no sound")
    with pytest.warns(UserWarning, match=r"1 of 2 .*bad\.flac") as warned:
        embeddings = model.embed(tmp_path)
    assert [warning.filename for warning in warned] == [__file__]
    assert embeddings.ids == ("good.flac",)
    (tmp_path / "face.jpg").write_bytes(b"\xff\xd8\xff\xe0 no list")
    with pytest.raises(ValueError, match=r"\.flac"):
        model.embed(tmp_path / "face.jpg")


def test_temporary_files_do_not_stay(model):
    with items_of(np.ones(1600, np.float32), modality="speaker", rate_hz=16000) as items:
        assert items[0].path.is_file()
    assert not items[0].path.parent.exists()


def test_what_cannot_be_loaded_is_refused(run):
    with pytest.raises(ValueError, match=r"nothing\.onnx"):
        likeness.load("insightface:none", detector="nothing.onnx")
    for option, value in (("calibration", "nothing.json"), ("device", "gpu")):
        with pytest.raises(ValueError, match=value):
            likeness.load(run, **{option: value})


@pytest.fixture(scope="module")
def world(model: likeness.Model, voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial list, embeddings and scores."""
    folder = tmp_path_factory.mktemp("world")
    write_trials(folder / "trials.txt", folders.trials(voices, split="all")[1])
    model.embed(voices).save(folder / "voices.npz")
    likeness.score(folder / "trials.txt", folder / "voices.npz").save(folder / "scores.txt")
    return folder


def test_files_and_values_are_scored_and_evaluated_alike(world, voices):
    embeddings = likeness.read_embeddings(world / "voices.npz")
    trials = likeness.read_trials(world / "trials.txt")
    of_files = likeness.score(str(world / "trials.txt"), world / "voices.npz")
    of_values = likeness.score(trials, embeddings)
    np.testing.assert_array_equal(of_files.values, of_values.values)
    assert f"{len(trials)} between" in repr(trials)
    result = likeness.evaluate(of_values)
    from_file = likeness.evaluate(world / "scores.txt")
    assert result.eer == pytest.approx(from_file.eer, abs=1e-6)
    assert result.interval == pytest.approx(from_file.interval, abs=1e-6)
    target, nontarget = of_values.scores.targets, of_values.scores.nontargets
    assert result.eer == likeness.metrics.eer(target, nontarget)
    assert np.mean(nontarget >= result.threshold(far=0.2)) <= 0.2
    for text in (str(result), repr(result)):
        assert "EER" in text
    of_values.save(world / "saved.txt")
    assert (world / "saved.txt").read_bytes() == (world / "scores.txt").read_bytes()
    shown = likeness.evaluate(of_values, embeddings=world / "voices.npz")
    page = shown.report(world / "report", media=voices)
    assert "voices.npz" in page.read_text(encoding="utf-8")  # a file is named with its digest
    blind = likeness.Trials(trials.enrol_ids, trials.probe_ids, trials.enrol, trials.probe)
    with pytest.raises(ValueError, match="labels"):
        likeness.evaluate(likeness.score(blind, embeddings))


def test_help_and_version(monkeypatch):
    """-h works everywhere, and the list of commands holds whole sentences at any width."""
    monkeypatch.setenv("COLUMNS", "50")
    shown = printed("-h") + printed("--version") + printed("verify", "-h")
    assert f"likeness {likeness.__version__}" in shown
    groups = re.findall(r"^(\w+):$", shown.partition("likeness 0")[0], re.MULTILINE)
    assert groups == ["Options", "Start", "Data", "Train", "Measure", "Use"]
    assert "..." not in shown.split("Start:")[1].split("likeness 0")[0]


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_help_fits_a_terminal(columns, capsys, monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    for arguments in ([], ["score"], ["gallery", "search"]):
        assert run_command(*arguments, "-h") == 0
    assert 30 < max(map(len, capsys.readouterr().out.splitlines())) <= min(columns, 80)


def test_help_of_a_recipe_lists_its_fields():
    shown = printed("train", "image/digits", "--help")
    assert "schedule.steps=" in shown
    assert not re.search(r"<\w|\blist\[", shown)


@pytest.mark.parametrize(
    ("scores", "error", "word"),
    [
        ({}, ValueError, "0 systems"),
        ("a.txt", FileNotFoundError, "a.txt"),
        (["a.txt", "a.txt"], ValueError, "twice"),
        (likeness.Scores(np.ones(1), np.ones(1, bool)), ValueError, "target"),
    ],
)
def test_what_cannot_be_evaluated(scores, error, word):
    with pytest.raises(error, match=word):
        likeness.evaluate(scores)  # type: ignore[arg-type]


def test_scores_without_ids_are_evaluated_over_trials(world):
    scored = likeness.score(world / "trials.txt", world / "voices.npz")
    with_ids, bare = likeness.evaluate(scored), likeness.evaluate(scored.scores)
    assert bare.eer == with_ids.eer
    assert bare.threshold(far=0.2) == with_ids.threshold(far=0.2)
    result = bare.results[0]
    assert result.counts["subjects"] is None
    assert "over trials" in str(result.conventions["interval"])
    assert "no ids" in str(result.conventions["subjects_from"])
    assert "<table" in bare.report(world / "bare").read_text(encoding="utf-8")
    both = likeness.evaluate({"a": scored.scores, "b": scored.scores})
    assert both["a"].eer == both["b"].eer == bare.eer
    with pytest.raises(ValueError, match="2 systems"):
        _ = both.eer
    with pytest.raises(ValueError, match="ids"):
        likeness.evaluate({"a": scored.scores, "b": scored})
    for more in ({"subjects": {"a": "b"}}, {"trials": world / "trials.txt"}):
        with pytest.raises(ValueError, match="ids"):
            likeness.evaluate(scored.scores, **more)


def test_a_pair_is_calibrated_as_a_list_is(world, run, voices, tmp_path):
    fitted = likeness.calibrate(world / "trials.txt", world / "voices.npz", quality=["log_norm"])
    fitted.save(tmp_path / "calibration.json")
    trials = likeness.read_trials(world / "trials.txt")
    first, second = trials.enrol_ids[trials.enrol[0]], trials.probe_ids[trials.probe[0]]
    files = [voices / first, voices / second]
    scoring = likeness.Scoring(calibration=fitted)
    llr = likeness.score(trials, world / "voices.npz", scoring).values[0]
    for calibration in (fitted, tmp_path / "calibration.json"):
        result = likeness.load(run, calibration=calibration).verify(*files)
        assert result.llr == pytest.approx(llr, abs=1e-4)


def test_thresholds_are_those_of_the_table(world):
    settings = likeness.VerificationSettings(p_targets=(0.1,), c_miss=20, num_resamples=0)
    result = likeness.evaluate(world / "scores.txt", settings)
    (row,) = (row for row in result.results if row.metric.startswith("min_dcf"))
    assert result.threshold(p_target=0.1) == pytest.approx(row.threshold)


def test_how_items_are_read_is_part_of_the_embeddings(model, faces, voices):
    names = sorted(voices.rglob("*.flac"))[:2]
    plain = model.embed(names)
    for reading, stated in (
        ({"crops": 3}, {"crops"}),
        ({"chunk_seconds": 1.0, "only_speech": True}, {"chunks", "pauses"}),
    ):
        embeddings = model.embed(names, **reading)
        assert embeddings.meta.keys() - plain.meta.keys() == stated
    pixels = np.random.default_rng(0).integers(0, 255, (28, 28, 3), dtype=np.uint8)
    both = faces.embed([pixels, pixels[:, ::-1]], flip="concat")
    assert both.matrix.shape == (2, 8)
    np.testing.assert_allclose(both.matrix[0, :4], both.matrix[1, 4:], atol=1e-5)
    assert both.meta["flip"] == "concat"
    assert faces.embed(pixels).matrix.shape == (1, 4)


def test_the_truth_of_a_verification_is_its_decision(model):
    verify = partial(model.verify, NOISE, NOISE, rate_hz=16000)
    assert verify(threshold=0.9)
    assert not verify(threshold=1.5)
    with pytest.raises(ValueError, match="threshold"):
        bool(verify())
