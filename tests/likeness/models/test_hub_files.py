"""Files of a network come from a folder or, for an id that is named, from the hub; runs that train
it start from it, resume, and need its files no more.
"""

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file

from likeness.eval.formats.runs import find_model
from likeness.modalities import folders
from likeness.modalities.speaker.augment import train_view
from likeness.modalities.synthetic_glyphs import write_glyphs
from likeness.models import _hub, _speechbrain
from likeness.models._hub import find_files
from likeness.models.load import load_named, read_initial
from likeness.recipe import Compute, Optim, Recipe, Sampling, Schedule, fit
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.checkpoint import FORMAT, read, save
from likeness.toolkit.models.export import export
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.log import read_log
from tests import tiny, tiny_hub
from tests.toolkit.training.tiny_runs import cut_and_resumed, raising_at

COMMIT = hashlib.sha1(b"likeness").hexdigest()


class Hub(BaseHTTPRequestHandler):
    """What the hub answers about one repository, ann/net, whose files are those of a folder."""

    protocol_version = "HTTP/1.1"
    commit = COMMIT  # of main and v1

    def __init__(self, folder: Path, asked: list[str], *arguments: Any):
        self.folder, self.asked = folder, asked
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        sizes = [(file.name, file.stat().st_size) for file in sorted(self.folder.iterdir())]
        api, headers = "/api/models/ann/net", {"Content-Type": "application/json"}
        file = self.folder / path.rpartition("/")[2]
        status, content = 200, b"{}"
        if path in (api, *(f"{api}/revision/{tag}" for tag in ("main", "v1", self.commit))):
            siblings = [{"rfilename": name, "size": size} for name, size in sizes]
            whole = {"id": "ann/net", "sha": self.commit, "siblings": siblings}
            content = json.dumps(whole).encode()
        elif path == f"{api}/tree/{self.commit}":
            kind = {"type": "file", "oid": "0" * 40}
            content = json.dumps([kind | {"path": n, "size": size} for n, size in sizes]).encode()
        elif path == f"/ann/net/resolve/{self.commit}/{file.name}" and file.is_file():
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            headers = {"ETag": etag, "X-Linked-Etag": etag, "X-Repo-Commit": self.commit}
        else:
            status, headers = 404, {"X-Error-Code": "RepoNotFound"}
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with more in it than a network needs."""
    tiny_hub.save("resnet", tmp_path / "net")
    (tmp_path / "net" / "modeling_evil.py").write_text("raise SystemExit")
    (tmp_path / "net" / "pytorch_model.bin").write_bytes(b"pickle")
    return tmp_path / "net"


@pytest.fixture
def asked(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the hub was asked for, while it runs."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, folder, asked))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    cache = tmp_path / "a" / "b" / "cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    yield asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_id_is_fetched_once_and_its_commit_is_stored(folder, asked, monkeypatch):
    """Only JSON and safetensors; the embeddings are those of the folder."""
    model = load_named("hub:ann/net@v1")
    assert model.settings["revision"] == model.meta["revision"] == COMMIT
    fetched = {path.rpartition("/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {"config.json", "preprocessor_config.json", "model.safetensors"}
    assert any(path.endswith("/revision/v1") for path in asked)
    assert load_named(f"hub:{folder}").digest == model.digest
    files = sum("/resolve/" in path for path in asked)
    assert load_named(f"hub:ann/net@{COMMIT}").digest == model.digest
    assert sum("/resolve/" in path for path in asked) == files, "what is cached is not fetched"
    # where the hub cannot be asked, the cache is enough for what was asked before
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for source in (f"ann/net@{COMMIT}", "ann/net@v1"):
        offline = load_named(f"hub:{source}")
        assert (offline.digest, offline.settings["revision"]) == (model.digest, COMMIT)
    with pytest.raises(ValueError, match="not in the cache"):
        load_named("hub:ann/net")


def test_pytorch_model_bin_is_fetched_where_there_are_no_other_weights(folder, asked):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    expected = load_named(f"hub:{folder}").embedder.state_dict()
    (folder / "model.safetensors").unlink()
    model = load_named("hub:ann/net@v1")
    assert model.settings["revision"] == COMMIT
    fetched = {path.rpartition("/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {"config.json", "preprocessor_config.json", "pytorch_model.bin"}
    found = model.embedder.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def recipe(source: str) -> Recipe:
    """What fine-tunes a network of the hub on images."""
    return Recipe(
        modality="image",
        frontend=_hub.frontend(source),
        backbone=_hub.backbone(source, dim=4),
        loss=partial(ArcFace, scale=8.0),
        items=partial(folders.items, modality="image", split="all"),
        read=_hub.read(source),
        sampling=Sampling(batch_size=4),
        schedule=Schedule(steps=2, save_every=1),
        compute=Compute(threads=1),
        init=f"hub:{source}",
    )


def test_a_run_stores_the_commit_that_it_started_from(folder, asked, tmp_path, monkeypatch, capsys):
    """In its log and its models. A later commit of the same network changes none of it."""
    write_glyphs(tmp_path / "glyphs", num_alphabets=1, num_characters=2, num_drawers=4, size=40)
    out, cut = tmp_path / "run", raising_at(1, RuntimeError("power cut"))
    start = partial(fit, data=tmp_path / "glyphs", read_initial=read_initial)
    digest = load_named(f"hub:{folder}").digest
    init = {"model": "hub:ann/net@v1", "digest": digest, "revision": COMMIT}
    with pytest.raises(RuntimeError, match="power cut"):
        start(recipe("ann/net@v1"), out=out, step=cut)
    assert f"commit {COMMIT[:12]}" in capsys.readouterr().err
    assert read_log(out)[0] == {"step": 0, "init": init}
    stated = json.loads((out / "recipe.json").read_text())
    assert stated["backbone"]["args"]["revision"] == COMMIT
    later = hashlib.sha1(b"later").hexdigest()
    monkeypatch.setattr(Hub, "commit", later)
    changed = recipe("ann/net@v1")
    assert changed.backbone.keywords["revision"] == later  # type: ignore[attr-defined]
    start(changed, out=out, resume=True)
    assert [entry.get("init") for entry in read_log(out)] == [init, None, None]
    _, description, _ = checkpoint.read(out / "last.safetensors", checkpoint.FORMAT)
    assert (description["step"], description["init"]) == (2, init)
    tuned = load_named(str(out))
    assert tuned.parts["backbone"]["args"]["revision"] == later


def test_a_folder_is_never_asked_for(folder, asked, monkeypatch):
    """Also where its path looks like an id."""
    (folder.parent / "org").mkdir()
    folder.rename(folder.parent / "org" / "net")
    monkeypatch.chdir(folder.parent)
    assert "revision" not in load_named("hub:org/net").settings
    assert asked == []


def test_a_repository_that_is_not_there_is_one_sentence(asked):
    with pytest.raises(ValueError, match=r"could not be fetched.*hf download"):
        load_named("hub:ann/nothing")


def test_files_of_speechbrain_are_fetched(asked, folder):
    for name in ("hyperparams.yaml", "embedding_model.ckpt"):
        (folder / name).write_text(name)
    yaml, weights = _speechbrain.find_files("ann/net")
    assert (yaml.read_text(), weights.name) == ("hyperparams.yaml", "embedding_model.ckpt")
    (folder / "embedding_model.ckpt").unlink()
    assert _speechbrain.find_files("ann/net")[1].is_file()


@pytest.mark.parametrize(
    "source", ["nowhere", "a/b/c", "../net", "a/b@-x", "a/b@c d", "a b/c", "", "a/b@c/../../d"]
)
def test_what_is_neither_folder_nor_id_is_refused_and_not_asked_for(source, asked):
    with pytest.raises(ValueError, match="neither a folder nor an id"):
        find_files(source)
    assert asked == []


def speech_recipe(folder: Path, **backbone: Any) -> Recipe:
    """A run of four steps over a network that a folder holds."""
    name, view = str(folder), partial(train_view, seconds=(0.2, 0.3))
    own = {"frontend": _hub.frontend(name), "backbone": _hub.backbone(name, **backbone)}
    plan = {"optim": Optim(lr=0.01), "schedule": Schedule(steps=4, save_every=2), "measure": None}
    return replace(tiny.BASE, **own, **plan, augment=view, compute=Compute(threads=1))


@pytest.mark.parametrize("name", ["wav2vec2 large", "wavlm base"])
def test_a_run_resumes_and_its_model_needs_neither_hub_nor_folder(name, voices, tmp_path):
    """Dropout and all: the weights after a power cut are those of a run without one."""
    net = tmp_path / "net"
    tiny_hub.save(name, net)
    # Layers left out and frames masked at random, as published configurations have it.
    tiny_hub.change(net / "config.json", layerdrop=0.5, mask_time_prob=0.5, apply_spec_augment=True)
    changed = speech_recipe(net, pooling="MHFA", heads=2, compressed=3, dim=8)
    fit(changed, data=voices, out=tmp_path / "whole")
    cut_and_resumed(changed, at=3, data=voices, out=tmp_path / "cut")
    weights, stated, _ = read(find_model(tmp_path / "whole"), FORMAT)
    again, _, _ = read(find_model(tmp_path / "cut"), FORMAT)
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    parts = {key.split(".")[1] for key in weights if key.startswith("backbone.")}
    assert parts == {"network", "pool", "project"}
    shutil.rmtree(net)
    model = load_named(str(tmp_path / "whole"))
    assert model.embedder.dim == 8
    assert json.loads(stated["backbone"]["args"]["config"])["hidden_size"] == 16
    assert torch.isfinite(model.embedder(torch.randn(2, 4000))).all()
    name = "backbone.pool.weights_k"
    assert torch.equal(model.embedder.state_dict()[name], weights[name])


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        ({"hidden_size": 4096}, "weights"),
        ({"_attn_implementation": "a/b"}, "_attn_implementation"),
        ({"auto_map": "net.Net"}, "auto_map"),
        ({"use_kernels": True}, "use_kernels"),
        ({"hidden_act": "org/kernel"}, "hidden_act"),
    ],
)
def test_a_hostile_configuration_in_a_checkpoint_is_refused(change, keyword, tmp_path):
    """A checkpoint that comes from elsewhere chooses no code, and no size beyond its weights."""
    tiny_hub.save("hubert large", tmp_path / "net")
    part = _hub.backbone(str(tmp_path / "net"))
    config = {**json.loads(part.keywords["config"]), **change}
    tensors = load_named(f"hub:{tmp_path / 'net'}").embedder.state_dict()
    parts = {"frontend": _hub.frontend(str(tmp_path / "net")), "read": tiny.BASE.read}
    parts["backbone"] = partial(part, config=json.dumps(config))
    description = {name: describe(of) for name, of in parts.items()}
    description |= {"modality": "speaker", "features": "raw", "similarity": "cosine", "step": 1}
    save(tmp_path / "model.safetensors", tensors, description, FORMAT)
    with pytest.raises(ValueError, match=keyword):
        load_named(str(tmp_path / "model.safetensors"))


@pytest.mark.slow  # exports take long; image networks: tests/toolkit/models/test_export.py
@pytest.mark.parametrize("name", ["wav2vec2 large", "wavlm base"])
def test_a_network_of_the_hub_is_exported(name, tmp_path):
    """Waves of several lengths have the same embeddings on ONNX Runtime, and the file needs no
    transformers.
    """
    tiny_hub.save(name, tmp_path / "net")
    parity = export(load_named(f"hub:{tmp_path / 'net'}"), tmp_path / "net.onnx")
    assert parity.distance < 1e-6
    assert load_named(str(tmp_path / "net.onnx")).embedder.dim == 16
