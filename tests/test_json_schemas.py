"""What the commands and the service give fits the schemas in docs/reference/schemas."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness import Fusion, Scores, load_fusion, open_gallery
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.thresholds import measure
from likeness.models.load import load_named
from likeness.models.verdicts import Comparer
from tests.scripts import ROOT, printed
from tests.tiny_yunet import tiny_yunet

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = ROOT / "docs" / "reference" / "schemas"
NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))


def schema(name: str, part: str = "") -> Any:
    """A schema; part: of service, which answer."""
    whole = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return whole["$defs"][part] if part else whole


def check(document: Any, name: str, part: str = "") -> None:
    wrong = jsonschema.Draft202012Validator(schema(name, part)).iter_errors(document)
    assert [f"{error.json_path}: {error.message[:200]}" for error in wrong] == []


# ---------------------------------------------------------------- the schemas and the page


def test_the_page_leads_to_every_schema():
    page = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\(schemas/(\w+)\.json\)", page)) == NAMES


def documents(name: str) -> list[tuple[Any, Any]]:
    """(schema, its example) of everything in a file of schemas."""
    whole = schema(name)
    wholes = list(whole["$defs"].values()) if name == "service" else [whole]
    return [(one, shown) for one in wholes for shown in one["examples"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_fit_and_other_keys_do_not(name):
    for part, shown in documents(name):
        jsonschema.Draft202012Validator.check_schema(part)
        checked = jsonschema.Draft202012Validator(part)
        checked.validate(shown)
        for key in part["required"]:
            less = copy.deepcopy(shown)
            del less[key]
            assert not checked.is_valid(less), key
        assert not checked.is_valid({**shown, "no_such_key": 1})


# ---------------------------------------------------------------- what commands write


@pytest.fixture(scope="module")
def model(_world: Path) -> Path:
    """An untrained model: what it thinks of voices does not matter here."""
    return _world / "runs" / "voices"


@pytest.fixture(scope="module")
def folder(model: Path, voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of the voices, trials among them, and scores by two similarities."""
    made = tmp_path_factory.mktemp("json")
    printed("embed", "--items", voices, "--model", model, "--out", made / "e.npz")
    ids = np.load(made / "e.npz")["ids"].tolist()
    pairs = itertools.combinations(ids, 2)
    lines = [f"{a} {b} {int(a[:6] == b[:6])}\n" for a, b in pairs]
    (made / "trials.txt").write_text("".join(lines))
    (made / "fewer.txt").write_text("".join(lines[3:]))
    groups = [f"{name} {'fm'[k % 2]}\n" for k, name in enumerate(sorted({a[:6] for a in ids}))]
    (made / "groups.txt").write_text("".join(groups))
    systems = {"a": ("trials", "cosine"), "b": ("trials", "euclidean"), "c": ("fewer", "dot")}
    for name, (trials, similarity) in systems.items():
        words = ("score", "--trials", made / f"{trials}.txt", "--embeddings", made / "e.npz")
        printed(*words, "--similarity", similarity, "--out", made / f"{name}.txt")
    return made


def written(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_results_of_evaluate_identify_and_retrieve(folder):
    out = folder / "results.json"
    scores = [folder / f"{name}.txt" for name in "abc"]
    more = ["--far", "0.1", "--resamples", "20", "--json", out, "--force"]
    printed("evaluate", *scores, "--groups", folder / "groups.txt", *more)
    document = written(out)
    check(document, "results")
    assert {"groups", "differences", "unpaired"} <= document.keys()
    assert (len(document["differences"]), len(document["unpaired"])) == (4, 1)
    printed("evaluate", scores[0], "--quality", "norm", "--embeddings", folder / "e.npz", *more)
    check(written(out), "results")
    printed("evaluate", scores[0], "--llr", "--resamples", "0", "--json", out, "--force")
    check(written(out), "results")
    assert "cllr" in {result["metric"] for result in written(out)["results"]}
    (folder / "same.txt").write_text("s/1 s/2 0.5\nt/1 t/2 0.25\n")
    alone = ("--all-targets", "--threshold", "0.3", "--resamples", "20", "--json", out, "--force")
    printed("evaluate", folder / "same.txt", *alone)
    check(written(out), "results")
    assert [of["value"] for of in written(out)["results"]] == [0.375, 0.375, 0.5]
    for command, *inputs in (
        ("identify", "--probes", folder / "e.npz", "--gallery", folder / "e.npz"),
        ("retrieve", "--embeddings", folder / "e.npz", "--quality", "norm"),
    ):
        printed(command, *inputs, "--resamples", "20", "--json", out, "--force")
        check(written(out), "results")


def test_thresholds_origins_calibrations_and_fusions(folder):
    check(written(folder / "a.txt.origin.json"), "origin")
    more = ["--resamples", "0", "--save-to", folder / "thresholds.json"]
    printed("evaluate", folder / "a.txt", "--far", "0.1", *more)
    printed("evaluate", folder / "b.txt", "--far", "0.7", "--guarantee", "0.5", *more)
    document = written(folder / "thresholds.json")
    check(document, "thresholds")
    assert len(document["measured"]) == 2
    assert any("guarantee" in point for point in document["measured"][0]["points"])
    embeddings = ["--trials", folder / "trials.txt", "--embeddings", folder / "e.npz"]
    calibrated = ["--quality", "log_norm", "--out", folder / "calibration.json"]
    printed("fit", "calibration", *embeddings, *calibrated)
    check(written(folder / "calibration.json"), "fusion")
    assert len(load_fusion(folder / "calibration.json").quality_weights) == 2
    fused = [folder / "a.txt", folder / "b.txt"]
    printed("fit", "fusion", *fused, "--out", folder / "fusion.json")
    check(written(folder / "fusion.json"), "fusion")


@pytest.mark.slow
def test_two_files(folder, model, voices):
    out, plain = folder / "out.json", folder / "plain.json"
    embeddings = ["--trials", folder / "trials.txt", "--embeddings", folder / "e.npz"]
    printed("fit", "calibration", *embeddings, "--out", plain)
    for more in ((), ("--threshold", "0.5", "--calibration", plain)):
        verify = ("verify", *sorted(voices.rglob("*.flac"))[:2], "--model", model, *more)
        printed(*verify, "--json", out, "--force")
        check(written(out), "verification")
        assert (written(out)["accepted"] is None) == (not more)
    assert written(out)["llr"] is not None


# ---------------------------------------------------------------- what the service answers


@pytest.fixture(scope="module")
def answers(folder: Path, model: Path, voices: Path) -> Iterator[dict[str, Any]]:
    """The answers of a server with a gallery that keeps media, by the names of the schema."""
    from likeness.service._pages import Example, slider
    from likeness.service._work import Service
    from tests.likeness.service.serving import asking, face_network, photograph

    rng = np.random.default_rng(0)
    scores = Scores(rng.standard_normal(400), np.arange(400) % 4 == 0)
    stored, _ = measure(scores, Origin("cosine"), data="demo", fars=[0.1])
    file = sorted(voices.rglob("*.flac"))[0].read_bytes()
    loaded = load_named(str(model))
    gallery = open_gallery(folder / "people", loaded.meta)
    offered = {"examples": [Example("a.flac", file)], "keeps_media": True}
    service = Service(Comparer(loaded, None, 0.5), gallery, slider=slider(stored, ""), **offered)
    ask, bare = asking(service), asking(Service(Comparer(loaded)))
    face = face_network(folder, tiny_yunet(folder / "yunet.onnx"))
    beside = Service(Comparer(face)), Fusion((1.0, 1.0), 0.0, ("", ""))
    both = asking(Service(Comparer(loaded), beside=beside))
    kinds = [(side, of) for side in ("first", "second") for of in (file, photograph())]
    two, one, sent = {"first": file, "second": file}, {"file": file}, {"files": file}
    got = {
        "enrol": [ask("POST", "/enrol", data={"subject": "ann"}, files=sent)],
        "health": [ask("GET", "/health"), bare("GET", "/health")],
        "thresholds": [ask("GET", "/thresholds"), bare("GET", "/thresholds")],
        "verify": [to("POST", "/verify", files=two) for to in (ask, bare)],
        "identify": [ask("POST", "/identify", files=one)],
        "gallery": [ask("GET", "/gallery")],
        "enrolments": [ask("GET", "/gallery/ann")],
        "examples": [ask("GET", "/examples")],
        "error": [
            ask("POST", "/verify", files={**two, "second": b"no sound"}),
            ask("POST", "/verify", files=one),
            bare("GET", "/gallery"),
            ask("DELETE", "/gallery/ann", headers={"Authorization": ""}),
        ],
        "removed": [ask("DELETE", "/gallery/ann")],
    }
    got["verify"].append(both("POST", "/verify", files=kinds))
    lines = ask("POST", "/embed", files=[("files", file), ("files", b"no sound")]).text
    answers = {name: [answer.json() for answer in several] for name, several in got.items()}
    yield answers | {"embed": [json.loads(line) for line in lines.splitlines()]}
    gallery.close()


def test_the_service_answers_as_its_schemas_say(answers):
    assert answers.keys() | {"faces"} == schema("service")["$defs"].keys()
    for name, documents_ in answers.items():
        for document in documents_:
            check(document, "service", name)
    assert answers["enrolments"][0]["enrolments"][0]["medium"] == "sound"
    assert answers["thresholds"][1]["places"] == []


def test_faces_are_answered_as_their_schema_says(tmp_path):
    from likeness.service._work import Service
    from tests.likeness.service.serving import face_network, photograph

    detector = tiny_yunet(tmp_path / "yunet.onnx")
    answer = Service(Comparer(face_network(tmp_path, detector))).faces(photograph())
    check(answer, "service", "faces")
    assert answer["found"] > 0
