"""Parts of other packages and of files beside the recipe, from training to embedding; and what a
model may import that names them.
"""

import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import likeness
from likeness.embedding import extraction
from likeness.eval.formats import embeddings as files
from likeness.models.reading import Reading, read_as
from likeness.models.run import load_model
from likeness.models.trust import check_trusted
from likeness.toolkit.models import checkpoint, user_files
from likeness.toolkit.models.parts import restore
from likeness.toolkit.training import measure
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.train import fit
from tests.scripts import ROOT, printed, program, run_command

PACKAGE = '''"""Networks of somebody else."""

from __future__ import annotations

import os
from os import system as call_system
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import Linear

from likeness.toolkit.losses.margin import ArcFace

if TYPE_CHECKING:
    from nowhere import Nothing


class Levels(nn.Module):
    def __init__(self, bands=8):
        super().__init__()
        self.dim = bands

    def forward(self, wave, lengths=None):
        return wave.unfold(1, 160, 160)[..., : self.dim].abs() * 10, lengths


class MeanNet(nn.Module):
    pads_exactly = False

    def __init__(self, in_dim, dim=8, act=nn.ReLU, widths=(), weights="", **others):
        super().__init__()
        self.dim, self.widths = dim, widths
        self.layers = nn.Sequential(nn.Linear(in_dim, 16), act(), nn.Linear(16, dim))

    def forward(self, features, lengths=None):
        return self.layers(features.mean(dim=1))


class Scaled(ArcFace):
    pass


def make_net(in_dim, dim: int = 8) -> nn.Module:
    return MeanNet(in_dim, dim)


def make_anything(in_dim, dim=8):
    return MeanNet(in_dim, dim)


def annotated_by_what_is_not_there(in_dim) -> Nothing:
    return MeanNet(in_dim)


def gap(target, nontarget):
    return float(nontarget.mean() - target.mean())


def write(path="written", text="x") -> None:
    with open(path, "w") as file:
        file.write(text)
'''
NETWORK = """from petnets.nets import MeanNet


class OwnNet(MeanNet):
    pass
"""
READING = """from likeness.modalities import folders
from likeness.modalities.speaker import audio


def loud(item, *, gain=1.0):
    return audio.read(item) * gain


def first(data, *, number=6):
    items = folders.items(data, split="train")
    return [item for item in items if int(item.id[-7:-5]) < number]
"""
RECIPE = """from dataclasses import replace
from functools import partial

import nearby_net
import nearby_read
from petnets.nets import Levels, MeanNet, Scaled, gap

from likeness.modalities import folders
from likeness.toolkit.training.recipe import Schedule, Verification
from tests import tiny


def half(wave, rng, batch_rng):
    return wave[:8000] * 0.5


BESIDE = replace(
    tiny.BASE,
    frontend=partial(Levels, bands=8),
    backbone=partial(nearby_net.OwnNet, dim=8),
    loss=partial(Scaled, scale=8.0),
    items=partial(nearby_read.first, number=9),
    read=partial(nearby_read.loud, gain=0.5),
    augment=half,
    measure=Verification(trials=partial(folders.trials, split="test"), metrics={"gap": gap}),
    schedule=Schedule(steps=4, save_every=2),
)
RECIPES = {
    "beside": BESIDE,
    "package": replace(BESIDE, backbone=partial(MeanNet, dim=8, widths=(1, 2))),
}
"""


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a recipe, whose package is installed as pip leaves it."""
    for name, text in {
        "site/petnets/__init__.py": "",
        "site/petnets/nets.py": PACKAGE,
        "site/petnets-1.2.dist-info/METADATA": "Name: petnets\nVersion: 1.2\n",
        "site/petnets-1.2.dist-info/top_level.txt": "petnets\n",
        "mine/nearby_net.py": NETWORK,
        "mine/nearby_read.py": READING,
        "mine/pet_recipe.py": RECIPE,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield tmp_path / "mine"
    forget()


def trained(pets: Path, voices: Path, variant: str = "beside") -> Path:
    recipe, _ = recipes.load(f"{pets / 'pet_recipe.py'}:{variant}")
    fit(recipe, data=voices, out=pets / variant)
    return pets / variant


def forget() -> None:
    """As a new process would: nothing of the user's is imported."""
    for name in list(sys.modules):
        if name.startswith(("petnets", "nearby_", "pet_recipe")):
            del sys.modules[name]


# ---------------------------------------------------------------- from training to embedding


def test_a_checkpoint_names_packages_and_versions(pets, voices):
    _, stated, _ = checkpoint.read(trained(pets, voices) / "last.safetensors", checkpoint.FORMAT)
    assert stated["frontend"] == part("petnets.nets.Levels", bands=8)
    packages = [stated[part]["package"] for part in ("backbone", "read")]
    assert packages == ["nearby_net", "nearby_read"]
    version = stated["backbone"]["version"]
    assert len(version) == 12
    assert user_files.module_digest("nearby_net").startswith(version)
    assert stated["recipe"]["augment"]["call"] == "pet_recipe.half"
    assert stated["recipe"]["loss"]["call"] == "petnets.nets.Scaled"
    assert set(stated["recipe"]["measure"]["trials"]) == {"call", "args"}


def test_loading_imports_nothing_unless_it_is_trusted(pets, voices):
    run = trained(pets, voices)
    expected = measure.load_model(run, recipes.load(str(pets / "pet_recipe.py"))[0]).embedder
    forget()
    with pytest.raises(ValueError, match=r"petnets 1\.2.*--trust nearby_net"):
        likeness.load(run)
    with pytest.raises(ValueError, match="nearby_net"):
        likeness.load(run, trust="petnets")
    assert not {"petnets", "nearby_net"} & sys.modules.keys()
    model = likeness.load(run, trust=["petnets", pets], device="cpu")
    wave = torch.sin(torch.arange(16000.0))[None]
    with torch.no_grad():
        assert torch.equal(model.loaded.embedder(wave), expected(wave))
    assert len(model.embed(voices).ids) == 32
    with pytest.raises(ValueError, match="loud"):  # no option replaces a reading of others
        read_as(model.loaded, Reading(crops=2))


def test_a_run_goes_on_and_gives_the_model_that_it_trained(pets, voices):
    settings = "backbone.dim=4"
    train = partial(likeness.train, pets / "pet_recipe.py", voices, pets / "run", settings=settings)
    model = train()
    assert model.dim == 4  # without being asked for trust: the user ran the recipe
    forget()
    assert train(resume=True).loaded.digest == model.loaded.digest
    forget()
    (pets / "nearby_net.py").write_text(NETWORK + "\n# another file\n")
    with pytest.raises(ValueError, match="another recipe"):
        train(resume=True)


@pytest.mark.slow  # an export
def test_an_exported_model_needs_trust_for_its_reading_alone(pets, voices):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    run, nearby = trained(pets, voices), ("--trust", pets)
    a = likeness.load(run, trust=["petnets", pets], device="cpu").embed(voices)
    printed("export", run, "--out", pets / "model.onnx", "--trust", "petnets", *nearby)
    forget()
    with pytest.raises(ValueError, match="nearby_read") as caught:
        likeness.load(pets / "model.onnx")
    assert "petnets" not in str(caught.value)
    b = likeness.load(pets / "model.onnx", trust=pets).embed(voices)
    np.testing.assert_allclose(a.matrix, b.matrix, rtol=1e-4, atol=1e-5)
    assert a.meta["model"] == b.meta["model"]


SPAWN = """
import multiprocessing, sys
from likeness.cli import main
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main(sys.argv[1:])
"""


@pytest.mark.slow  # two commands, and the processes that they spawn, import torch
def test_spawned_workers_find_the_functions_of_the_recipe(pets, voices):
    (pets / "list.txt").write_text("".join(f"{path}\n" for path in sorted(voices.rglob("*.flac"))))
    script = pets.parent / "program.py"
    script.write_text(SPAWN)
    train = ["train", "mine/pet_recipe.py", "compute.workers=1", "--data", voices, "--out", "run"]
    embed = ["embed", "--model", "run", "--items", "mine/list.txt", "--root", "/", "--out", "a.npz"]
    trust = ["--trust", "petnets", "--trust", "mine"]
    search = f"{pets.parent / 'site'}:{ROOT}"
    for arguments in (train, [*embed, "--workers", "1", *trust]):
        program(script, *arguments, cwd=pets.parent, PYTHONPATH=search)
    assert len(files.read_embeddings(pets.parent / "a.npz").ids) == 32


# ---------------------------------------------------------------- what may be imported


def part(call: str, package: str = "petnets", **args: Any) -> dict[str, Any]:
    return {"call": call, "args": args, "package": package, "version": "1.2"}


def test_functions_that_return_a_module_are_parts(pets):
    made: Any = restore(part("petnets.nets.make_net"), "backbone", kind="module", trusted="petnets")
    assert made(3).dim == 8
    nested = part("petnets.nets.MeanNet", act=part("petnets.nets.Levels"), widths=[1, [2, 3]])
    made = restore(nested, "backbone", kind="module", trusted=["petnets"])
    assert made.keywords["act"].func.__name__ == "Levels"
    assert made.keywords["widths"] == (1, (2, 3))
    assert isinstance(made(3, extra=1).layers[1], sys.modules["petnets.nets"].Levels)


@pytest.mark.parametrize(
    "call",
    [
        "petnets.nets.write",  # no network
        "petnets.nets.make_anything",  # says nothing of what it returns
        "petnets.nets.annotated_by_what_is_not_there",
        "petnets.nets.Linear",  # of torch
        "petnets.nets.call_system",  # of os
        "petnets.nets.os.system",
        "petnets.absent.Net",
        "petnets.nets.__builtins__",
        "petnets.nets.Levels.__init__",
        "petnets",
        "otherpets.nets.MeanNet",
        "torch.nn.modules.linear.Linear",
        "likeness.toolkit.models.user_files.os.system",
        "likeness.toolkit.models.user_files.run",  # ours, and no network
        "likeness.toolkit.models.checkpoint.save_file",  # a function that this module imports
        "likeness.modalities.speaker.audio.read.__globals__",
        "os.system",
        "",
    ],
)
def test_trust_in_a_package_opens_no_other_and_ours_only_for_its_own(call, pets, monkeypatch):
    monkeypatch.chdir(pets)
    stated = [part(call)] if call.startswith(("petnets", "other", "torch")) else []
    for described in (*stated, {"call": call, "args": {}}):
        for kind in ("module", "read"):
            with pytest.raises(ValueError, match="backbone"):
                restore(described, "backbone", kind=kind, trusted=["petnets"])  # type: ignore[arg-type]
    assert not (pets / "written").exists()


@pytest.mark.parametrize("stated", [None, "os.system", {"call": 7, "args": {}}, {"call": "a.B"}])
def test_descriptions_of_another_form_are_refused(stated):
    with pytest.raises(ValueError, match="a part is"):
        restore(stated, "backbone", kind="module")


def test_a_model_brings_no_path_of_weights(pets):
    for weights, kept in ((str(pets / "w.txt"), {}), ("distance", {"weights": "distance"})):
        given = {"network": part("petnets.nets.MeanNet", weights=weights)}
        nested = {"call": "toolkit.backbones.external.External", "args": given}
        made: Any = restore(nested, "backbone", kind="module", trusted=["petnets"])
        assert made.keywords["network"].keywords == kept
    inner = {"call": "toolkit.backbones.vit.ViT", "args": {"weights": "secret.pt", "dim": 8}}
    head = {"call": "toolkit.backbones.head.Head", "args": {}}
    joined = {"call": "toolkit.models.embedder.Joined", "args": {"network": inner, "head": head}}
    made = restore(joined, "backbone", kind="module")
    assert made.keywords["network"].keywords["weights"] == ""


@pytest.mark.parametrize("entry", ["pet-nets", "petnets.nets", "", "absent.py", "json.py"])
def test_what_cannot_be_trusted(entry, pets, monkeypatch):
    """json.py has the name of an installed module."""
    (pets / "json.py").write_text("raise RuntimeError\n")
    monkeypatch.chdir(pets)
    with pytest.raises(ValueError, match="rename"):
        check_trusted({}, [entry], "m")


def test_a_package_that_is_absent_or_of_another_version(pets, voices):
    run = trained(pets, voices, "package")
    trust = ["petnets", str(pets / "nearby_read.py")]
    items, out = recipes.load(f"{pets / 'pet_recipe.py'}:beside")[0].items(voices), pets / "a.npz"
    extraction.extract(load_model(run, trust=trust), items, out, piece_items=2)
    forget()
    metadata = pets.parent / "site" / "petnets-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    (pets / "nearby_read.py").write_text(READING + "\n# changed\n")
    with pytest.warns(UserWarning, match="made with") as caught:
        changed = load_model(run, trust=trust)
    of_file, of_package = sorted(str(entry.message) for entry in caught)
    assert "nearby_read" in of_file
    assert "petnets 1.2" in of_package
    assert "petnets 1.3" in of_package
    with pytest.raises(ValueError, match=r"\(read_by differ\)"):
        extraction.extract(changed, items, out, piece_items=2)
    forget()
    (pets.parent / "site" / "petnets").rename(pets.parent / "site" / "gone")
    with pytest.raises(ValueError, match=r"petnets 1\.2.*not installed"):
        load_model(run, trust=trust)
    (pets / "nearby_read.py").unlink()
    (pets.parent / "site" / "gone").rename(pets.parent / "site" / "petnets")
    with pytest.raises(ValueError, match=r"nearby_read.*not installed"):
        load_model(run, trust=["petnets", "nearby_read"])


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        ("backbone=lambda dim: None", "lambda"),
        ("backbone=make_anything", "annotated"),
        ("backbone=partial(MeanNet, dim=8, act=object())", "object"),
        ("backbone=MeanNet.forward", "top"),
        ("read=Levels", "item"),
    ],
)
def test_what_no_checkpoint_can_state_is_refused_before_training(change, keyword, pets, voices):
    text = RECIPE.replace("MeanNet, Scaled", "MeanNet, Scaled, make_anything, write")
    text += f"from dataclasses import replace\nRECIPES['x'] = replace(RECIPES['package'], {change})"
    (pets / "pet_recipe.py").write_text(text)
    recipe, _ = recipes.load(f"{pets / 'pet_recipe.py'}:x")
    with pytest.raises(ValueError, match=keyword):
        fit(recipe, data=voices, out=pets / "refused")
    assert not (pets / "refused").exists()


# ---------------------------------------------------------------- a network in several files


def test_a_network_in_several_files_needs_one_trust(pets, voices, monkeypatch):
    """It trains, and each command that `train` names next begins without the files imported."""
    monkeypatch.chdir(pets.parent)
    said = printed("train", "mine/pet_recipe.py", "--data", voices, "--out", "run")
    lines = [line.strip() for line in said.partition("next:")[2].splitlines() if line.strip()]
    named = [shlex.split(line) for line in lines if "--model" in line or " export " in line]
    assert named
    trust = ("--trust", "mine", "--trust", "petnets")
    for words in named:
        start = words.index("--trust")
        assert (*words[start : start + 4], words.count("--trust")) == (*trust, 2)
    forget()
    sys.path[:] = [folder for folder in sys.path if folder != str(pets)]
    assert run_command("embed", "--model", "run", "--items", voices, "--out", "a.npz", *trust) == 0
    assert len(files.read_embeddings(Path("a.npz")).ids) == 32
    forget()
    pytest.importorskip("granian")
    from likeness.eval.scoring.threshold_files import Rule
    from likeness.service.server import Setup, _application

    app, _ = _application(Setup("run", Rule(), token="t" * 16, trust=["mine", "petnets"]))
    client = TestClient(app, base_url="http://localhost")
    assert client.get("/health").json()["modality"] == "speaker"


def test_a_folder_opens_its_files_and_no_installed_module(pets):
    (pets / "json.py").write_text("raise RuntimeError\n")
    (pets / "ownnets").mkdir()
    (pets / "ownnets" / "__init__.py").write_text("")
    trusted = check_trusted({}, [str(pets)], "m")
    assert {"nearby_net", "nearby_read", "pet_recipe", "ownnets"} <= trusted
    assert not {"json", "toolkit", "os"} & trusted
    assert check_trusted({}, [str(pets / "ownnets")], "m") == {"ownnets"}
