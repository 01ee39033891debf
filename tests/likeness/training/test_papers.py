"""`likeness reproduce`: the tables name what exists, quote the papers, and run in miniature on
drawn data in the layouts of the real sets.
"""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.writing import write_json
from likeness.modalities.speaker import voxceleb
from likeness.toolkit.training import recipe as recipes
from likeness.training import papers as reproduce
from likeness.training.recipe_files import locate
from tests import test_recipes, test_recipes_papers
from tests.eval.protocols.test_ijb_packs import write_pack
from tests.modalities.speaker import test_voxceleb
from tests.scripts import run_command
from tests.tiny import QUICK, small_settings

TABLES = reproduce.tables()
images = test_recipes.data
birds = test_recipes_papers.birds


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("faces")
    return {
        name: test_recipes.draw_faces(root / name, has_folders=name == "vggface2")
        for name in ("vggface2", "ms1mv2")
    }


@pytest.fixture(scope="module")
def vox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vox")
    test_voxceleb.miniature(folder)
    return folder


@cache
def listed(name: str) -> dict[str, Any]:
    return recipes.read(locate(name))["RECIPES"]


def steps_of(table: reproduce.Table, rows: list[str]) -> Iterator[list[str]]:
    words = dict.fromkeys(("data", "out", "recipes", "examples"), "FOLDER") | {"seeds": "1"}
    return (step for _, step in reproduce._steps(table, rows, words, {}))


@pytest.mark.parametrize("name", TABLES)
def test_steps_name_variants_that_exist(name):
    table = TABLES[name]
    named = 0
    for step in steps_of(table, list(table.rows)):
        if "--variants" in step and step[1] == "compare":
            recipe, _, group = step[2].partition(":")
            for variant in step[step.index("--variants") + 1].split(","):
                assert (f"{group}.{variant}" if group else variant) in listed(recipe)
                named += 1
        elif step[0] == "measure":
            recipe, _, variant = step[2].partition(":")
            assert variant in listed(recipe)
            named += 1
        else:
            assert step[0] in ("likeness", "python")
    assert named or all(step[0] == "python" for step in steps_of(table, list(table.rows)))


@pytest.mark.parametrize("name", [name for name, table in TABLES.items() if table.columns])
def test_rows_have_the_numbers_of_the_paper(name, shared):
    """Each printed number stands in the text of the paper."""
    table = TABLES[name]
    text = (shared / "papers" / f"{name.partition('/')[0]}.txt").read_text(encoding="utf-8")
    known = set(re.findall(r"\d+\.\d+", text))
    assert table.definitions
    assert len({len(numbers) for numbers in table.rows.values()}) == 1
    for row, numbers in table.rows.items():
        assert len(numbers) <= len(table.columns), row
        for number in re.findall(r"\d+\.\d+", " ".join(numbers)):
            assert number in known or number.rstrip("0") in known, (row, number)


MINIATURES = [
    # table, rows, whose data and settings
    ("vmf/1", "standard,vmf", "image/vmf:mnist.vmf"),
    ("vmf/2", "standard,vmf", "image/vmf:cifar10.vmf"),
    ("vmf/3", "standard,vmf", "image/vmf:mnist.vmf"),
    ("vmf/4", "standard,standard_cosine", "image/vmf:cub200.standard"),
    ("nivmf/1", "el_nivmf,panc", "image/nivmf:cub200.el_nivmf"),
    ("nivmf/2", "r_128,div&conq,margin", "image/nivmf:cub200.r_128"),
    ("nivmf/4", "cos,elk_nivmf", "image/nivmf:cub200.cos"),
    ("nivmf/5", "cos,elk_nivmf", "image/nivmf:cub200.cos"),
    ("simple/2", "b_r3_a0.001_theta0.3", "face/ms1mv2:b_simple"),
    ("simple/3", "sphereface2,simple", "face/vggface2:simple"),
    ("simple/4", "b_arcface,b_simple", "face/ms1mv2:b_simple"),
    ("simple/5", "c_arcface,c_scf_arcface,c_adaface", "face/ms1mv2:c_arcface"),
    ("simple/6", "c_arcface", "face/ms1mv2:c_arcface"),
    ("simple/7", "contrastive", "image/simple:cub200.contrastive"),
    ("simple/8", "softmax,simple", "speaker/voxceleb:softmax"),
    ("simple/9", "b_r3_a0.0005_theta0.4", "face/ms1mv2:b_simple"),
    ("simple/10", "ce,ce_star_b0.3", "face/vggface2:ce"),
]


def settings_of(recipe: str) -> list[str]:
    """FIELD=VALUE by which the recipes of a table train in seconds."""
    file, _, variant = recipe.partition(":")
    made = replace(listed(file)[variant], memory=None)  # which not all rows have
    if file.startswith("image/"):
        return test_recipes.shrinking(made)
    if file.startswith("face/"):
        # IJB's faces are aligned to 112 pixels, of which networks of width 8 crash in oneDNN
        faces = [text.replace("32", "112") for text in test_recipes.FACES]
        faces += ["backbone.width=16", "sampling.batch_size=4", "schedule.watch="]
        return small_settings(made, *faces)
    small = ["backbone.width=8", "backbone.dim=8", "sampling.batch_size=4"]
    return [*QUICK, *small, "augment.seconds=0.3,0.4"]


@pytest.mark.parametrize(
    ("name", "rows", "recipe"),
    [
        pytest.param(*each, marks=[] if each[0] in ("vmf/3", "simple/8") else [pytest.mark.slow])
        for each in MINIATURES
    ],
)
def test_a_table_runs_in_miniature(name, rows, recipe, tmp_path, request, monkeypatch):
    table = TABLES[name]
    if recipe.startswith("image/"):
        data = request.getfixturevalue("birds" if name == "simple/7" else "images")
        first = recipe.partition(":")[2].partition(".")[0]
        monkeypatch.setattr(reproduce, "tables", lambda: {name: cheaper(table, first)})
    elif recipe.startswith("face/"):
        data = tmp_path / "data"
        file = recipe.partition(":")[0].partition("/")[2]
        shutil.copytree(request.getfixturevalue("faces")[file], data)
        if table.sets != ("",):
            write_pack(data / "IJBB")
            write_pack(data / "IJBC")
    else:
        data = request.getfixturevalue("vox")
        for protocol in ("O_cleaned", "E_cleaned", "H_cleaned"):
            monkeypatch.setitem(voxceleb.PROTOCOLS, protocol, (("veri_test2.txt",), 4, 2))
    out = tmp_path / "out"
    chosen = rows.split(",")
    how = {"settings": settings_of(recipe), "rows": chosen, "seeds": 1, "run": in_this_process}
    text = reproduce.reproduce(name, data, out, **how)
    assert (out / f"{name.replace('/', '-')}.txt").read_text(encoding="utf-8") == text
    measured = [line for line in text.splitlines() if line.split(" ")[0] in chosen]
    assert len(measured) == len(chosen)
    assert any(re.search(r"\d \([\d.±-]+\)", line) for line in measured)


def in_this_process(command: Sequence[str]) -> None:
    if command[0] == "likeness":
        assert run_command(*command[1:]) == 0
    else:
        reproduce.in_new_process(command)


def cheaper(table: reproduce.Table, first: str) -> reproduce.Table:
    """The table on one of its data sets, with one setting that is tried."""
    sets = [first] if first in table.sets else table.sets
    return replace(table, sets=sets, tune={first: "--tune 1"} if table.tune else {})


CELLS = reproduce.Table(
    name="some/1",
    title="of two runs",
    data="nothing",
    columns=[["EER", "a/{row}/{seed}.json", "eer"], ["ours", "a/{row}/{seed}.json", "frr"]],
    published="first 6.13±0.05\nsecond -",
    seeds=2,
)


@pytest.mark.parametrize(
    ("spread", "first"),
    [("standard error", "50.00±10.00 (6.13±0.05)"), ("standard deviation", "50.00±14.14 (6.13")],
)
def test_a_cell_has_the_digits_and_the_spread_of_its_table(spread, first, tmp_path):
    table = replace(CELLS, spread=spread)
    for seed, value in enumerate((0.4, 0.6)):
        for row in table.rows:
            (tmp_path / "a" / row).mkdir(parents=True, exist_ok=True)
            write_json(tmp_path / f"a/{row}/{seed}.json", {"values": {"eer": value, "frr": 0.25}})
    text = reproduce._written(table, ["first", "second"], tmp_path)
    measured = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert first in measured["first"]
    assert "25.00±0.00" in measured["first"]  # a column of ours has no number beside it
    assert "(-)" in measured["second"]
    assert measured["second"].split()[1].startswith("50.00±")
    assert spread in text


def test_a_table_says_what_its_spread_is():
    """vMF, Tables 2 and 4: "± 1 standard-error"; nivMF, Fig. 5: "standard deviation"."""
    spreads = {name: table.spread for name, table in TABLES.items() if "±" in table.published}
    errors = dict.fromkeys(("vmf/2", "vmf/3", "vmf/4"), "standard error")
    assert spreads == errors | dict.fromkeys(("nivmf/1", "nivmf/4"), "standard deviation")


def test_results_of_other_settings_or_data_are_not_taken_as_finished(tmp_path):
    """The steps of IJB write files; that compare refuses other runs is tested with it."""
    data, out = tmp_path / "data", tmp_path / "out"
    crop = data / "IJBB" / "img" / "1.jpg"
    crop.parent.mkdir(parents=True)
    crop.write_bytes(b"1")
    done = []

    def run(command: Sequence[str]) -> None:
        done.append(command[1])
        for option in {"--out", "--json"} & {*command}:
            path = Path(command[command.index(option) + 1])
            if path.suffix:
                path.write_text('{"results": []}')

    def reproduce_with(*settings: str) -> None:
        how = {"settings": settings, "rows": ["simple"], "seeds": 1, "run": run}
        reproduce.reproduce("simple/3", data, out, **how)

    reproduce_with()
    assert {"embed", "evaluate", "identify"} < {*done}
    done.clear()
    reproduce_with()
    assert done == ["compare"]  # which sees itself what is finished
    crop.with_name(".DS_Store").touch()
    os.utime(crop, (1, 1))
    reproduce_with()
    crop.write_bytes(b"23")
    with pytest.raises(LikenessError, match="other data"):
        reproduce_with()


FINISHED = {"accuracy": 0.5, "auroc": 0.5, "map@r": 0.5}


def finishing(done: list[Sequence[str]], fails: str = "nothing") -> Any:
    """A run of steps that leaves a result of every variant, or fails on one data set."""

    def run(command: Sequence[str]) -> None:
        done.append(command)
        out = Path(command[command.index("--out") + 1])
        if out.name == fails:
            raise LikenessError("the data set is not there")
        for variant in command[command.index("--variants") + 1].split(","):
            (out / variant / "seed-0").mkdir(parents=True, exist_ok=True)
            write_json(out / variant / "seed-0" / "result.json", {"values": FINISHED})

    return run


@pytest.fixture
def tested(faces, vox, tmp_path, monkeypatch) -> dict[str, Path]:
    """The data by their tables, to be changed."""
    for protocol in ("O_cleaned", "E_cleaned", "H_cleaned"):
        monkeypatch.setitem(voxceleb.PROTOCOLS, protocol, (("veri_test2.txt",), 4, 2))
    whole = {"simple/6": faces["ms1mv2"], "simple/8": vox}
    return {name: Path(shutil.copytree(whole[name], tmp_path / name)) for name in whole}


@pytest.mark.parametrize(
    ("name", "row", "file"),
    [
        ("simple/6", "c_arcface", "cfp_fp.bin"),
        ("simple/8", "softmax", "veri_test2.txt"),
        ("simple/8", "softmax", "vox1/test/wav/id10270/video/00000.wav"),
    ],
)
def test_what_is_measured_beside_the_data_of_a_run_is_looked_at(
    name, row, file, tested, tmp_path, monkeypatch
):
    done = list[Sequence[str]]()

    def run(command: Sequence[str]) -> None:
        if command[1] == "compare":
            finishing([])(command)
        else:
            done.append(command)
            write_json(command[-1], {"values": {}})

    monkeypatch.setattr(reproduce, "_measure", lambda *words: run(["measure", *words]))
    how = {"rows": [row], "seeds": 1, "run": run}
    again = partial(reproduce.reproduce, name, tested[name], tmp_path / "out", **how)
    again()
    num_done = len(done)
    assert num_done == len(TABLES[name].sets)
    again()
    assert len(done) == num_done
    changed = tested[name] / file
    content = changed.read_bytes()
    middle = len(content) // 2
    if file.endswith(".txt"):
        changed.write_text("".join(reversed(content.decode().splitlines(keepends=True))))
    else:
        changed.write_bytes(content[:middle] + b"other" + content[middle + 5 :])
    with pytest.raises(LikenessError, match="other data"):
        again()


def cells(text: str, row: str) -> list[str]:
    """A row's values, without the paper's."""
    line = next(line for line in text.splitlines() if line.startswith(row))
    return re.sub(r"\([^)]*\)", "", line).split()[1:]


def first_of_vmf(folder: Path, run: Any, **options: Any) -> str:
    """Table 1 of vMF, of one run."""
    return reproduce.reproduce("vmf/1", folder, folder / "out", run=run, seeds=1, **options)


def test_a_table_of_some_data_sets_has_holes(tmp_path):
    done: list[Sequence[str]] = []
    everything = first_of_vmf(tmp_path, finishing(done), rows=["vmf"])
    assert cells(everything, "vmf") == ["0.50"] * 4
    done.clear()
    two = first_of_vmf(tmp_path, finishing(done), rows=["vmf"], sets=["mnist", "cifar10"])
    assert [command[2] for command in done] == ["image/vmf:mnist", "image/vmf:cifar10"]
    # what is there of other sets was not looked at: it may be of other settings
    assert cells(two, "vmf") == ["0.50", "-", "0.50", "-"]


def test_a_data_set_that_fails_leaves_a_hole(tmp_path):
    run, sets = finishing([], fails="fashion_mnist"), ["mnist", "fashion_mnist"]
    text = first_of_vmf(tmp_path, run, sets=sets)
    assert cells(text, "arcface") == ["0.50", "-", "-", "-"]
    with pytest.raises(LikenessError, match="not there"):
        first_of_vmf(tmp_path, run, sets=["fashion_mnist"])


def test_a_setting_of_a_row_changes_it_alone(tmp_path):
    done: list[Sequence[str]] = []
    settings = ["optim.lr=0.05", "vmf:loss.tau=1", "vmf:items.name=fashion_mnist"]
    options = {"rows": ["arcface", "vmf", "cosine"], "sets": ["mnist"], "settings": settings}
    first_of_vmf(tmp_path, finishing(done), **options)
    changed = [(command[4], [word for word in command if "=" in word]) for command in done]
    of_vmf = ["optim.lr=0.05", "loss.tau=1", "items.name=fashion_mnist"]
    assert changed == [("arcface,cosine", ["optim.lr=0.05"]), ("vmf", of_vmf)]


def test_what_is_searched_is_searched_on_the_sets_without_released_settings():
    for name in ("nivmf/figure-5", "nivmf/4", "nivmf/5"):
        steps = steps_of(TABLES[name], list(TABLES[name].rows))
        compared = [step for step in steps if "compare" in step]
        assert [("--tune" in step) for step in compared] == [False, True]
        assert [step[2] for step in compared] == ["image/nivmf:cub200", "image/nivmf:cars196"]


@pytest.mark.parametrize(
    ("name", "rows", "settings", "sets", "says"),
    [
        ("simpl/8", [], [], [], "simple/8"),
        ("simple/8", ["nobody"], [], [], "softmax"),
        ("simple/8", [], ["nobody:optim.lr=1"], [], "softmax"),
        ("vmf/1", [], [], ["minst"], "mnist"),
        ("simple/2", [], [], ["lfw"], "it has none"),
        *(
            ("vmf/4", rows, [f"{row}:optim.lr=1"], [], f"row '{row}' is not trained .*standard")
            for rows, row in (([], "standard_cosine"), (["vmf", "standard_cosine"], "cosine"))
        ),
    ],
)
def test_what_is_asked_for_wrongly_is_said(name, rows, settings, sets, says, tmp_path):
    how = {"rows": rows, "settings": settings, "sets": sets}
    with pytest.raises(LikenessError, match=says):
        reproduce.reproduce(name, tmp_path, tmp_path / "out", **how)


def test_a_name_is_taken_once(tmp_path):
    done: list[Sequence[str]] = []
    run = finishing(done, fails="cifar10")
    with pytest.raises(LikenessError, match="not there"):
        first_of_vmf(tmp_path, run, rows=["vmf"] * 2, sets=["cifar10"] * 2)
    text = first_of_vmf(tmp_path, run, rows=["vmf"] * 2, sets=["mnist"] * 2)
    trained = [(command[2], command[4]) for command in done]
    assert trained == [("image/vmf:cifar10", "vmf"), ("image/vmf:mnist", "vmf")]
    assert text.count("\nvmf ") == 1


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("schedule.stepss=5", "did you mean"),
        ("vmf:loss.taw=1", "did you mean"),
        ("sampling.items_per_class=7", "sampling.items_per_class=7 breaks"),
    ],
)
def test_a_wrong_setting_ends_before_the_first_step(setting, says, tmp_path):
    done: list[Sequence[str]] = []
    with pytest.raises(LikenessError, match=says):
        first_of_vmf(tmp_path, finishing(done), settings=[setting], sets=["mnist"])
    assert not done


def test_a_table_says_what_was_changed(tmp_path):
    text = first_of_vmf(tmp_path, finishing([]), settings=["schedule.steps=5"])
    assert "Changed here: schedule.steps=5, 1 run in place of 5" in text
