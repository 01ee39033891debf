"""A head on cached embeddings: its data set, its training, and the model that it is joined to."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import likeness
from likeness import Embeddings, Item
from likeness.backbones import Head, OrderStatistics, XVector
from likeness.data import audio, rows, synthetic
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.metrics.verification import eer
from likeness.modalities.speaker.features import KaldiFbank
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.checkpoint import save_model
from likeness.toolkit.models.embedder import Joined, TorchEmbedder
from likeness.toolkit.training.recipe import Recipe
from likeness.toolkit.training.recipe import load as load_recipe
from likeness.training.recipe_files import locate
from tests import tiny_hub
from tests.modalities.data_set import DataSet
from tests.scripts import refused, run_command, touch
from tests.tiny_yunet import network as yunet
from tests.writers import limited

DIM, SUBJECTS, EACH = 6, 8, 5
ONE_THREAD = ["schedule.warmup_steps=1", "schedule.eval_every=0", "compute.threads=1"]
FEW = [*ONE_THREAD, "schedule.steps=4", "sampling.batch_size=4"]
FRONTEND = partial(KaldiFbank, num_mels=20, cmn=False)
META = {"model": "a" * 64, "modality": "speaker", "similarity": "cosine"}


def made(*, subjects: int = SUBJECTS, meta: dict[str, str] = META) -> Embeddings:
    """Clouds about a centre per subject, with large noise on two axes that say nothing."""
    rng = np.random.default_rng(0)
    centres = np.repeat(rng.normal(0, 1, (subjects, DIM)), EACH, axis=0)
    matrix = centres + 0.3 * rng.normal(0, 1, centres.shape)
    matrix[:, :2] = rng.normal(0, 3, (len(matrix), 2))
    ids = tuple(f"s{i // EACH}/{i % EACH}.wav" for i in range(len(matrix)))
    return Embeddings(ids, matrix.astype(np.float32), meta)


def miniature(folder: Path) -> None:
    made().save(folder / "embeddings.npz")


_LABELS, _FETCH = [f"s{k}" for k in range(SUBJECTS)], "embeddings files are in this|No such file"
DATA_SETS = {"embeddings": DataSet(miniature, rows.items, rows.trials, _LABELS, fetch=_FETCH)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made().save(tmp_path / "e.npz")
    return tmp_path / "e.npz"


def model(folder: Path, seed: int = 0, *, dim: int = DIM, features: Any = "raw") -> Path:
    """A small speaker model of random weights, as `likeness train` writes it."""
    folder.mkdir()
    torch.manual_seed(seed)
    embedder = TorchEmbedder(FRONTEND(), OrderStatistics(20, dim=dim), features=features)
    for parameter in embedder.backbone.parameters():
        nn.init.normal_(parameter, std=0.3)
    parts: dict[str, Any] = {"backbone": partial(OrderStatistics, dim=dim), "read": audio.read}
    recipe = Recipe("speaker", frontend=FRONTEND, loss=ArcFace, items=rows.items, **parts)
    path = folder / "last.safetensors"
    save_model(path, embedder, recipe, similarity="cosine", step=1, metrics={})
    return folder


@pytest.fixture
def head(voices: Path, tmp_path: Path) -> likeness.Model:
    """A head in head/, trained on the embeddings, in e.npz, of the model in base/."""
    likeness.load(model(tmp_path / "base")).embed(voices).save(tmp_path / "e.npz")
    return likeness.train("head", tmp_path / "e.npz", tmp_path / "head", settings=FEW)


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    synthetic.write_voices(folder, num_speakers=6, num_utterances=3, seconds=(0.3, 0.5))
    return folder


def test_a_new_head_gives_back_what_it_takes() -> None:
    x = torch.randn(5, 7)
    for head in (Head(7), Head(7, dim=7), Head(7, hidden=3)):
        torch.testing.assert_close(head(x), x, rtol=0, atol=0)
        num = 7 * 7 + 7 if head.hidden is None else (7 * 3 + 3) + (3 * 7 + 7)
        assert sum(parameter.numel() for parameter in head.parameters()) == num
    for head in (Head(7, dim=3), Head(7, dim=3, hidden=4)):
        assert head.dim == 3
        weight = next(head.linear.parameters()).detach()
        torch.testing.assert_close(weight @ weight.T, torch.eye(3), rtol=0, atol=1e-6)
        torch.testing.assert_close(head(x), x @ weight.T, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"\(5, 7\)"):
        Head(6)(x)


def test_a_trained_head_is_its_formula() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 5, dtype=torch.float64)
    head = Head(5, hidden=3).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    u, c, v, b = (parameter.detach().numpy() for parameter in head.hidden.parameters())
    for row, z in zip(x.numpy(), head(x).detach().numpy(), strict=True):
        inner = [max(0.0, sum(u[i, j] * row[j] for j in range(5)) + c[i]) for i in range(3)]
        expected = [row[k] + sum(v[k, i] * inner[i] for i in range(3)) + b[k] for k in range(5)]
        np.testing.assert_allclose(z, expected, rtol=1e-12)


def test_rows_are_items_of_disjoint_subjects(file: Path) -> None:
    whole = made()
    listed, trials = rows.trials(file)
    assert listed == rows.items(file, split="test")
    assert len(listed) == 2 * EACH
    assert (len(trials), trials.target.sum()) == (45, 20)  # all pairs of 2 subjects x 5 embeddings
    for number, item in enumerate(rows.items(file, split="all")):
        np.testing.assert_array_equal(rows.read(item), whole.matrix[number])
    with pytest.raises(ValueError, match="no embedding of 'x'"):
        rows.read(Item("x", file))


@pytest.mark.parametrize("name", ["subjects.txt", "utt2spk"])
def test_subjects_come_from_a_list(tmp_path: Path, name: str) -> None:
    whole = made()
    ids = tuple(f"u{number}" for number in range(len(whole)))
    Embeddings(ids, whole.matrix, whole.meta).save(tmp_path / "e.ark")
    with pytest.raises(ValueError, match="40 of 40 ids have no subject"):
        rows.items(tmp_path)
    lines = [f"u{number} s{number // EACH}\n" for number in range(len(ids))]
    (tmp_path / name).write_text("".join(lines))
    beside = rows.items(tmp_path, split="all")
    assert [item.label for item in beside] == [f"s{number // EACH}" for number in range(len(ids))]
    named = rows.items(tmp_path / "e.ark", split="all", subjects=str(tmp_path / name))
    assert named == beside
    (tmp_path / name).write_text("".join(f"u{number} ann\n" for number in range(len(ids))))
    with pytest.raises(ValueError, match=f"1 subject .'ann'., by .*{name}"):
        rows.items(tmp_path)
    (tmp_path / name).write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match="1 of 40 ids have no subject"):
        rows.items(tmp_path)


def test_training_makes_subjects_clearer(tmp_path: Path) -> None:
    """Two axes say nothing: the head learns to leave them, also for the subjects held out."""
    file = tmp_path / "e.npz"
    made(subjects=40).save(file)
    settings = [*ONE_THREAD, "schedule.steps=150", "sampling.batch_size=16", "optim.lr=0.02"]
    _, trials = rows.trials(file)
    whole, target = made(subjects=40), trials.target

    def error(table: Embeddings) -> float:
        scores = score_trials(trials, table)
        return eer(scores[target], scores[~target])

    head = likeness.train("head", file, tmp_path / "head", settings=settings)
    assert head.modality == "embedding"
    assert head.dim == DIM
    adapted = head.embed(file)
    assert adapted.ids == whole.ids
    assert error(adapted) < error(whole) - 0.1


def test_a_checkpoint_states_the_model_of_its_embeddings(file: Path, tmp_path: Path) -> None:
    likeness.train("head:residual", file, tmp_path / "head", settings=FEW)
    _, state, _ = checkpoint.read(tmp_path / "head" / "last.safetensors", checkpoint.FORMAT)
    assert state["frontend"]["args"] == {"dim": DIM, "model": META["model"]}
    # other embeddings are another run
    made(meta={**META, "model": "b" * 64}).save(file)
    with pytest.raises(ValueError, match="frontend"):
        likeness.train("head:residual", file, tmp_path / "head", settings=FEW, resume=True)


def named(kind: str, folder: Path) -> str:
    """Write a network of a kind into a folder; returns its name as a model."""
    if kind == "hub":
        tiny_hub.save("wav2vec2 large", folder)
        return f"hub:{folder}"
    if kind == "wespeaker":
        folder.mkdir()
        network = XVector(20, dim=DIM, channels=16, pooled=24)
        torch.save(network.state_dict(), folder / "avg_model.pt")
        return f"wespeaker:{folder / 'avg_model.pt'}"
    return str(model(folder, dim=DIM + (kind == "polarlike"), features=kind))


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *(("raw", variant) for variant in ("linear", "residual", "supcon", "score_norm")),
        *((kind, "linear") for kind in ("polarlike", "hub", "wespeaker")),
    ],
)
def test_the_joined_model_embeds(kind: str, variant: str, voices: Path, tmp_path: Path) -> None:
    name = named(kind, tmp_path / "base")
    base = likeness.load(name)
    base.embed(voices).save(tmp_path / "e.npz")
    more = [*FEW, "sampling.items_per_class=2"] if variant == "supcon" else FEW
    head = likeness.train(f"head:{variant}", tmp_path / "e.npz", tmp_path / "head", settings=more)
    joined = likeness.join(name, tmp_path / "head", tmp_path / "joined")
    assert (joined.modality, joined.dim) == ("speaker", base.dim)
    assert joined.similarity == head.similarity
    assert joined.loaded.embedder.features == "raw"
    result, expected = joined.embed(voices), head.embed(tmp_path / "e.npz")
    assert result.ids == expected.ids
    np.testing.assert_allclose(result.matrix, expected.matrix, rtol=1e-6, atol=1e-6)
    assert result.meta["model"] == joined.loaded.digest not in (base.loaded.digest, META["model"])


@pytest.mark.usefixtures("head")
def test_a_join_that_fails_or_is_killed_blocks_no_other(tmp_path: Path) -> None:
    out, source = tmp_path / "joined", [str(tmp_path / name) for name in ("base", "head")]

    with limited(1000), pytest.raises(OSError, match="make room"):
        likeness.join(*source, out)
    assert not out.exists()
    begun = tmp_path / ".joined.0123456789ab.part" / "joined"
    begun.mkdir(parents=True)
    (begun / "last.safetensors").write_bytes(b"half")
    out.mkdir()
    likeness.join(*source, out)
    assert not begun.parent.exists()
    assert [path.name for path in out.iterdir()] == ["last.safetensors"]

    file = tmp_path / "mine"
    file.write_text("mine")
    words = ("export", source[0], "--head", source[1], "--out", file)
    assert "--force" in refused(*words)
    assert file.read_text() == "mine"
    assert run_command(*words, "--force") == 0
    assert (file / "last.safetensors").read_bytes() == (out / "last.safetensors").read_bytes()


def test_the_joined_model_is_fine_tuned(voices: Path, tmp_path: Path) -> None:
    """`init` takes it: at a rate of 0 its weights stay, all but the statistics of batch norm."""
    base = model(tmp_path / "base")
    likeness.load(base).embed(voices).save(tmp_path / "e.npz")
    likeness.train("head", tmp_path / "e.npz", tmp_path / "head", settings=[*FEW, "backbone.dim=4"])
    joining = ("export", base, "--head", tmp_path / "head", "--out", tmp_path / "joined")
    assert run_command(*joining) == 0
    joined = likeness.load(tmp_path / "joined")
    assert joined.dim == 4
    recipe, _ = load_recipe(locate("speaker/folders"))
    parts: Any = {"network": partial(OrderStatistics, dim=DIM), "head": partial(Head, dim=4)}
    tuned = replace(recipe, frontend=FRONTEND, backbone=partial(Joined, **parts))
    tuned = replace(tuned, init=str(tmp_path / "joined"))
    settings = [*FEW, "optim.lr=0.0", "optim.weight_decay=0.0"]
    start = likeness.train(tuned, voices, tmp_path / "tuned", settings=settings)
    before = joined.loaded.embedder.state_dict()
    for name, value in start.loaded.embedder.state_dict().items():
        if "normalise" not in name:
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.usefixtures("head")
def test_what_cannot_be_joined_is_refused(tmp_path: Path) -> None:
    base, other = tmp_path / "base", model(tmp_path / "other", seed=1)
    yunet(tmp_path / "own.onnx", (112, 112))
    for first, second, says in (
        (other, tmp_path / "head", "trained on embeddings of the model"),
        (base, other, "no head"),
        (f"insightface:{tmp_path / 'own.onnx'}", tmp_path / "head", "no weights of torch"),
        (tmp_path / "nothing", tmp_path / "head", "does not exist"),
    ):
        with pytest.raises(ValueError, match=says):
            likeness.join(first, second, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="exists already"):
        likeness.join(base, tmp_path / "head", tmp_path / "other")
    # A head alone embeds no recordings.
    touch(tmp_path, "a.wav")
    (tmp_path / "list.txt").write_text("a.wav\n")
    embed = ("embed", "--model", tmp_path / "head", "--items", tmp_path / "list.txt")
    assert "this is a head" in refused(*embed, "--out", tmp_path / "x.npz")
    with pytest.raises(ValueError, match="a head takes the path"):
        likeness.load(tmp_path / "head").embed([tmp_path / "a.wav"])
    with pytest.raises(ValueError, match="is a head"):
        likeness.load(tmp_path / "head").export(tmp_path / "head.onnx")


@pytest.mark.usefixtures("head")
def test_joining_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a head says of its recipe is no trust of the user's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    hostile = tmp_path / "hostile_net.py"
    hostile.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    path = tmp_path / "head" / "last.safetensors"
    tensors, state, _ = checkpoint.read(path, checkpoint.FORMAT)
    for number, package in enumerate((str(hostile), "hostile_net", "os", 3)):
        part = {"call": "hostile_net.Net", "args": {}, "package": package, "version": ""}
        checkpoint.save(path, tensors, state | {"recipe": {"x": part}}, checkpoint.FORMAT)
        likeness.join(tmp_path / "base", tmp_path / "head", tmp_path / f"joined{number}")
    assert not (tmp_path / "ran").exists()
    assert str(tmp_path) not in sys.path
    assert "hostile_net" not in sys.modules
