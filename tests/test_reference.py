"""Pages of docs/ say what the code says: the reference, the papers, notebooks; versions agree."""

import contextlib
import dataclasses
import io
import json
import re
import tomllib
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import yaml
from packaging.version import Version

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.formats.subjects import read_enrolment
from likeness.eval.formats.trials import read_scores
from likeness.models.bundled import FINDING_MODELS, model_for, resolve_model
from likeness.models.load import load_named
from likeness.models.verdicts import PairRow, read_pairs
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.memory import Memory
from likeness.training.recipe_files import locate
from tests.scripts import ROOT, loaded, printed, touch

REFERENCE = ROOT / "docs" / "reference"
# A field with its default, as the page of recipes has it.
PATTERN = r"^- `([\w.]+)=([^`]*)`(?: \(|:)"


@pytest.mark.slow  # makes every network of the page of backbones
def test_the_pages_are_what_the_classes_say():
    maker = loaded(ROOT / "docs" / "make_reference.py")
    for name in maker.PAGES:
        page = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
        assert page == maker.made(page), f"{name}.md: run python docs/make_reference.py"


@pytest.mark.parametrize(
    "name", ["speaker/folders", "image/digits", "face/webface", "image/simple"]
)
def test_every_field_that_help_lists_can_be_set_as_it_stands_there(name):
    plain, _ = recipes.load(locate(name))
    fields = recipes.fields_of(plain)
    again = recipes.override(plain, [f"{field}={value}" for field, value in fields.items()])
    assert recipes.fields_of(again) == fields


def test_every_default_of_the_page_can_be_set_as_it_stands_there():
    page = (REFERENCE / "recipes.md").read_text(encoding="utf-8")
    plain, _ = recipes.load(locate("speaker/folders"))
    checked = 0
    for cls in (recipes.Verification, recipes.Classification, recipes.Retrieval):
        # Other values than the defaults, so that setting a default changes something.
        measure: Any = cls(plain.items, plain.metrics)  # type: ignore[arg-type]
        if cls is recipes.Retrieval:
            measure = cls(plain.items, ks=(3,), num_samples=3, disjoint=False)
        start = dataclasses.replace(plain, memory=Memory(8, 0.5), measure=measure, seed=7)
        block = page.partition(f"\n## {cls.__name__},")[2].partition("\n## ")[0]
        common = page.partition("\n## Recipe\n")[2].partition("\n## Verification")[0]
        for name, text in re.findall(PATTERN, common + block, re.MULTILINE):
            if name in ("memory", "measure"):
                assert getattr(recipes.override(start, [f"{name}={text}"]), name) is None
                continue
            value: Any = recipes.override(start, [f"{name}={text}"])
            owner: Any = None
            for part in name.split("."):
                owner, value = value, getattr(value, part)
            (field,) = (one for one in dataclasses.fields(owner) if one.name == part)
            default = field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            assert value == default, name
            checked += 1
    assert checked > 100


# ---------------------------------------------------------------- formats


def first_block(title: str) -> str:
    """The first block below a heading of the page of formats."""
    page = (REFERENCE / "formats.md").read_text(encoding="utf-8")
    below = page.partition(f"# {title}\n")[2]
    return below.partition("```text\n")[2].partition("```")[0]


def test_the_examples_of_files_are_read(tmp_path):
    touch(tmp_path, "ann/1.flac", "ann/long.flac", "meeting.wav")
    touch(tmp_path / "recordings" / "ann", "1.flac", "2 of 3.flac")

    def written(name: str, title: str) -> Path:
        path = tmp_path / name
        path.write_text(first_block(title), encoding="utf-8")
        return path

    listed = likeness.items(written("items.txt", "Item lists"))
    assert [item.id for item in listed] == ["ann-1", "ann-2"]
    table = likeness.items(written("items.csv", "Tables of items"))
    assert [(item.label, item.stretch) for item in table] == [("ann", (0.5, 3.25))]
    assert list(table.column("sex")) == ["f"]
    (turn,) = likeness.items(written("turns.rttm", "Speaker turns (RTTM)"))
    assert (turn.label, turn.stretch) == ("ann", (0.46, 3.54))
    trials = likeness.read_trials(written("trials.txt", "Trial lists"))
    assert trials.target.tolist() == [True, False]
    scored, values = read_scores(written("scores.txt", "Score files"))
    assert scored.enrol_ids == trials.enrol_ids
    assert values[0] == 0.7130584120750427
    assert likeness.read_mapping(written("labels.txt", "Two columns"))["ann/2.flac"] == "ann"
    models = read_enrolment(written("enrolment.txt", "Enrolment"))
    assert models == {"ann": ("ann/1.flac", "ann/2.flac"), "bob": ("bob/1.flac",)}
    assert read_pairs(written("pairs.csv", "Pairs of files"))[0].label is True
    head = first_block("Verdicts, search results and clusters").splitlines()[0]
    assert tuple(head.split(",")) == PairRow._fields
    for line in first_block("Kaldi folders").splitlines():
        name, _, content = line.partition(" ")
        (tmp_path / name).write_text(content.strip().replace("1.flac", "2.flac") + "\n")
    (tmp_path / "recordings" / "ann" / "2.flac").touch()
    (spoken,) = likeness.items(tmp_path)
    assert (spoken.id, spoken.label, spoken.stretch) == ("ann-1-a", "ann", (0.5, 3.25))


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[str]:
    stated = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in stated["cells"] if cell["cell_type"] == kind]


@pytest.mark.slow  # one of them trains
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown: list[int] = []
    monkeypatch.setattr(plt, "show", lambda: (shown.append(len(plt.get_fignums())), plt.close()))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()):
        for number, cell in enumerate(cells(path, "code")):
            exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
    assert shown
    assert all(shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_and_its_links_lead_somewhere(path):
    stated = json.loads(path.read_text(encoding="utf-8"))
    counts = [cell["execution_count"] for cell in stated["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    for target in re.findall(r"\]\(([^)]+)\)", "\n".join(cells(path, "markdown"))):
        assert (path.parent / target).is_file(), target
    assert not re.search(r"(?<![\w.])/(?:work|tmp|home|root|Users)/", path.read_text("utf-8"))


def test_version_citation_and_change_log_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.findall(r"^## (\d\S*)", log, flags=re.MULTILINE)[0]
    assert str(cited["version"]) == newest
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    now, stated = Version(project["version"]), Version(newest)
    assert now == stated or (now > stated and now.is_devrelease)


PAPERS = (REFERENCE / "papers.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:image|face|speaker)/\w+):([^`\s]+)`", PAPERS)


@cache
def listed(name: str) -> dict[str, recipes.Recipe]:
    made: dict[str, recipes.Recipe] = recipes.read(locate(name))["RECIPES"]
    return made


@pytest.mark.parametrize(("name", "pattern"), NAMED)
def test_a_named_variant_exists(name, pattern):
    patterns = (pattern, f"{pattern}.*")  # a data set stands for its group
    assert any(fnmatchcase(variant, each) for variant in listed(name) for each in patterns)


OF_FACES = [("face/vggface2", "simple"), ("face/ms1mv2", "b_simple"), ("face/ms1mv2", "c_simple")]
OTHERS = [("image/simple", "cub200.simple"), ("speaker/voxceleb", "simple")]


@pytest.mark.parametrize(("name", "simple"), [*OF_FACES, *OTHERS])
def test_the_readings_of_simple_are_eq_8_and_the_angle(name, simple):
    made = listed(name)
    paper, angle = made[f"{simple}_paper"], made[f"{simple}_learned_angle"]
    loss = paper.loss(8, 3)
    assert (loss.reduction, loss.weight, loss.features) == ("joint", 1, "raw")
    assert not paper.backbone.keywords["dim"] % 2  # polar-like features take one output more
    assert angle.loss(8, 3).b_theta.requires_grad
    assert describe(replace(angle, loss=made[simple].loss)) == describe(made[simple])


@pytest.mark.parametrize(("name", "simple"), OTHERS)
def test_simple_released_has_the_release_s_factor_and_features(name, simple):
    made = listed(name)
    released, loss = made[f"{simple}_released"], made[f"{simple}_released"].loss(8, 3)
    assert (loss.reduction, loss.weight, loss.features) == ("separate", 500, "polarlike")
    assert released.backbone.keywords["dim"] == made[simple].backbone.keywords["dim"] + 1


NETWORKS = tomllib.loads((ROOT / "docs" / "networks.toml").read_text("utf-8"))["network"]
PAGE_OF_NETWORKS = (ROOT / "docs" / "how-to" / "networks.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_table_says():
    maker = loaded(ROOT / "docs" / "make_networks.py")
    assert maker.page() == PAGE_OF_NETWORKS, "run python docs/make_networks.py"


RESULTS = loaded(ROOT / "docs" / "make_results.py")


@pytest.mark.parametrize("name", RESULTS.PAGES)
def test_the_pages_of_what_was_measured_are_up_to_date(name):
    page = (REFERENCE / f"{name}.md").read_text(encoding="utf-8")
    assert page == RESULTS.page(name), "run python docs/make_results.py"
    assert "git show" not in page


@pytest.mark.parametrize("name", RESULTS.PAGES)
def test_every_table_says_what_it_shows_and_how_it_was_measured(name):
    data = tomllib.loads((REFERENCE / f"{name}.toml").read_text(encoding="utf-8"))
    for table in data["table"]:
        columns = table.get("columns", data.get("columns"))
        assert table["shows"].endswith("."), table["title"]
        assert {len(row) for row in table.get("rows", ())} <= {len(columns)}, table["title"]
        if name != "claims":  # one command and one date stand above all claims
            assert {"what", "machine"} <= set(table), table["title"]
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]), table["title"]
    titles = [table["title"] for table in data["table"]]
    assert len(set(titles)) == len(titles)


def test_every_claim_stands_in_the_column_of_its_data_and_the_row_of_its_losses():
    sections = RESULTS.page("claims").split("\n## ")[1:]
    tables = tomllib.loads((REFERENCE / "claims.toml").read_text(encoding="utf-8"))["table"]
    for section, table in zip(sections, tables, strict=True):
        assert section.startswith(table["title"])
        lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")]
        for data, compared, value, over, _, verdict in table.get("rows", ()):
            row = next(line for line in lines if line[0] == f"| {compared}")
            column = [name.strip(" |") for name in lines[0]].index(data)
            assert row[column].strip(" |") == f"{value} {over} {verdict}"


def test_every_network_states_everything_and_an_address_of_its_project():
    keys = {"name", "takes", "model", "fetch", "size", "code", "weights", "data"}
    keys |= {"published", "source", "tried"}
    kinds = (
        r"(likeness|wespeaker|speechbrain|redimnet|insightface|hub):\S+( --frontend \w+)?|own\.py"
        r"|~/\.likeness/\S+\.onnx"
    )
    for network in NETWORKS:
        assert set(network) == keys, network["name"]
        assert all(network.values()), network["name"]
        assert re.fullmatch(kinds, network["model"]), network["model"]
        assert network["source"].startswith("https://") or (ROOT / network["source"]).exists()
    assert len({network["name"] for network in NETWORKS}) == len(NETWORKS)
    assert not re.search(r"pypi|pythonhosted", PAGE_OF_NETWORKS)


def test_the_help_of_verify_names_the_page():
    text = " ".join(printed("verify", "--help").split())
    assert "docs/how-to/networks.md" in text
    assert "likeness prepare" in text


MISSING = ["runs/nothing", "nemo:titanet", "wespeaker:nothing.pt", "redimnet:nothing.pt"]
MISSING += ["insightface:nothing", "hub:nothing", "hub:nothing.pth"]
FINDING = [*((load_named, name) for name in MISSING), (resolve_model, "likeness:nothing")]


@pytest.mark.parametrize(("find", "what"), [*FINDING, (model_for, ["a.txt"])])
def test_errors_about_a_missing_model_name_the_page(find, what):
    with pytest.raises(LikenessError) as caught:
        find(what)
    assert str(caught.value).endswith(FINDING_MODELS)
    assert (ROOT / FINDING_MODELS.split()[0]).is_file()
