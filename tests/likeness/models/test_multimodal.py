"""A recording and a photograph of each of two people give one verdict, by a fusion of two models.

The people are made up: each has the voice of a speaker of AN4 and the face of somebody of ORL.
"""

import itertools
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soundfile
from PIL import Image

import likeness
from likeness import Fusion, Model, load_fusion
from likeness.models.multimodal import sorted_for
from tests.scripts import printed, refused
from tests.tiny_yunet import network


class People(NamedTuple):
    """Ten people with four recordings and four photographs each, and what was fitted on them.

    Attributes:
        folder: voices/NAME/0.flac, faces/NAME/0.pgm and so on, and fusion.json.
        names: Of the people.
        face: The model of photographs.
        scores: Of the fusion, by the ids of both sides.
    """

    folder: Path
    names: list[str]
    face: str
    scores: dict[tuple[str, str], float]

    def files(self, name: str, number: int) -> list[Path]:
        """A recording and a photograph of a person."""
        sides = (("voices", ".flac"), ("faces", ".pgm"))
        return [self.folder / kind / name / f"{number}{ending}" for kind, ending in sides]

    @property
    def fusion(self) -> Path:
        return self.folder / "fusion.json"


@pytest.fixture(scope="module")
def people(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> People:
    folder = tmp_path_factory.mktemp("people")
    spoken: dict[str, list[Path]] = {}
    for speaker in sorted((shared / "data/an4/wav").iterdir()):
        files = sorted(speaker.glob("*.flac"))
        spoken[speaker.name] = [file for file in files if soundfile.info(file).duration > 1.2]
    names = [name for name, files in spoken.items() if len(files) >= 4][:10]
    for name, seen in zip(names, sorted((shared / "data/orl").glob("s*")), strict=False):
        for number, photo in enumerate(sorted(seen.glob("*.pgm"))[:4]):
            for kind, file in (("voices", spoken[name][number]), ("faces", photo)):
                (folder / kind / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(file, folder / kind / name / f"{number}{file.suffix}")
    own = network(folder / "own.onnx", (112, 92))
    face = f"insightface:{own}@size=112x92,mean=127.5,std=128"
    ids = [f"{name}/{number}" for name in names for number in range(4)]
    lines = [f"{a} {b} {int(a[:4] == b[:4])}" for a, b in itertools.combinations(ids, 2)]
    (folder / "trials.txt").write_text("\n".join(lines))
    for kind, model in (("voices", "likeness:voice"), ("faces", face)):
        rows, scores = folder / f"{kind}.npz", folder / f"{kind}.txt"
        printed("embed", "--model", model, "--items", folder / kind, "--out", rows)
        of = ("--trials", folder / "trials.txt", "--embeddings", rows, "--strip-extension")
        printed("score", *of, "--out", scores)
    both = folder / "voices.txt", folder / "faces.txt"
    printed("fit", "fusion", *both, "--out", folder / "fusion.json")
    printed("score", *both, "--fusion", folder / "fusion.json", "--out", folder / "both.txt")
    rows = [line.split() for line in (folder / "both.txt").read_text().splitlines()]
    return People(folder, names, face, {(a, b): float(score) for a, b, score, _ in rows})


@pytest.fixture(scope="module")
def models(people: People) -> tuple[Model, Model]:
    return likeness.load("likeness:voice", calibration=False), likeness.load(people.face)


def test_the_score_is_that_of_the_lists_in_any_order(people, models):
    voice, face = models
    ann, bob = people.names[:2]
    for name, is_same in ((ann, True), (bob, False)):
        first, second = people.files(ann, 0), people.files(name, 1)
        alone = [of.verify(*sides).score for of, *sides in zip(models, first, second, strict=True)]
        for model, beside in ((voice, face), (face, voice), (voice, people.face)):
            got = model.verify(first, second[::-1], fusion=people.fusion, beside=beside)
            assert got.score == pytest.approx(people.scores[f"{ann}/0", f"{name}/1"], abs=1e-3)
            scores = {of: part["score"] for of, part in got.parts.items()}
            assert scores == pytest.approx(dict(zip(("speaker", "face"), alone, strict=True)))
            digests = [of.loaded.digest for of in models]
            assert [part["model"] for part in got.parts.values()] == digests
            assert got.accepted is (got.probability > 0.5) is is_same
            assert (got.llr, got.prior, got.similarity) == (got.score, 0.5, "fusion")
    for threshold, is_same in ((got.score, True), (got.score + 1e-6, False)):
        at = voice.verify(first, second, fusion=people.fusion, beside=face, threshold=threshold)
        assert (at.accepted, at.threshold) == (is_same, threshold)


def test_a_fusion_in_the_other_order_fits_too(people, models):
    voice, face = models
    fitted = load_fusion(people.fusion)
    turned = Fusion(fitted.weights[::-1], fitted.offset, fitted.systems[::-1])
    sides = people.files(people.names[0], 0), people.files(people.names[0], 1)
    scores = [voice.verify(*sides, fusion=of, beside=face).score for of in (fitted, turned)]
    assert scores[0] == pytest.approx(scores[1])


def test_arrays_are_in_the_order_of_the_fusion(people, models):
    voice, face = models
    paths = [people.files(people.names[0], number) for number in (0, 1)]
    arrays = [(*soundfile.read(sound), np.asarray(Image.open(photo))) for sound, photo in paths]
    sides = [((wave, rate_hz), pixels) for wave, rate_hz, pixels in arrays]
    expected = voice.verify(*paths, fusion=people.fusion, beside=face)
    got = voice.verify(*sides, fusion=people.fusion, beside=face)
    # one path says where the array beside it belongs
    assert sorted_for([face, voice], [b"", "a.jpg"]) == ["a.jpg", b""]
    assert sorted_for([face, voice], ["a.wav", b""]) == [b"", "a.wav"]
    assert got.score == pytest.approx(expected.score, abs=1e-3)


def test_the_command_says_both_scores_and_one_verdict(people, tmp_path):
    files = [*people.files(people.names[0], 0), *people.files(people.names[1], 1)]
    own = ("--fusion", people.fusion, "--beside", people.face)
    text = printed("verify", *files, *own, "--json", tmp_path / "both.json")
    first = [line.split()[0] for line in text.splitlines()]
    assert first == ["score", "speaker", "face", "llr", "probability", "decision"]
    document = json.loads((tmp_path / "both.json").read_text())
    assert document["files"] == list(map(str, files))
    assert list(document["parts"]) == ["speaker", "face"]
    other = ("--model", people.face, "--beside", "likeness:voice")
    assert printed("verify", *files, *own[:2], *other, "--threshold", "-99") != text
    assert f"{document['score']:.4f}" in text


def test_a_server_compares_both_kinds(people):
    serving = pytest.importorskip("tests.likeness.service.serving")
    from starlette.testclient import TestClient

    from likeness.service.server import Setup, _application

    setup = Setup("likeness:voice", token=serving.TOKEN, fusion=people.fusion, beside=people.face)
    ask = TestClient(_application(setup)[0], base_url="http://localhost").post
    name, other = people.names[:2]
    for second, is_same in ((name, True), (other, False)):
        of_each = {"first": people.files(name, 0), "second": people.files(second, 1)}
        sent = [(side, path.read_bytes()) for side, paths in of_each.items() for path in paths]
        answer = ask("/verify", files=sent).json()
        expected = people.scores[f"{name}/0", f"{second}/1"]
        assert answer["score"] == pytest.approx(expected, abs=1e-3)
        assert answer["accepted"] is is_same


def test_what_does_not_fit_is_refused_in_a_sentence(people, tmp_path):
    sound, photo = people.files(people.names[0], 0)
    other_sound, other = people.files(people.names[1], 0)
    files = (sound, photo, other_sound, other)
    own = ("--fusion", people.fusion, "--beside", people.face)
    fitted = json.loads(people.fusion.read_text())
    for name, change in {
        "others": {"systems": ["dot, model 00", fitted["systems"][1]]},
        "one": {"systems": fitted["systems"][:1], "weights": [1.0]},
        "quality": {"names": ["log_norm_low"], "quality_weights": [1.0]},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(fitted | change))
        line = ("verify", *files, "--fusion", tmp_path / f"{name}.json", *own[2:])
        assert "fitted for scores of" in refused(*line)
    assert "speaker and speaker" in refused("verify", *files, *own[:3], "likeness:voice")
    assert "a recording and a recording" in refused("verify", sound, other_sound, *files[2:], *own)
    assert "nothing" in refused("verify", sound, photo, *own)
    assert "give that too" in refused("verify", *files[:2], *own[2:])
    assert "--fusion" in refused("verify", *files)
    assert "stored for a fusion" in refused("verify", *files, *own, "--far", "0.01")
    assert "--calibration beside" in refused("verify", *files, *own, "--calibration", people.fusion)
    assert "score A B --fusion" in refused("verify", "--pairs", people.folder / "trials.txt", *own)
    how = {"fusion": people.fusion, "beside": people.face}
    with pytest.raises(likeness.LikenessError, match="but of one there is a recording"):
        likeness.load("likeness:voice").verify(str(sound), str(other_sound), **how)
