"""What the page of `likeness serve` asks for beside verdicts: faces, thresholds, examples, and what
is kept of enrolments.
"""

import base64
import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from likeness import Item, LikenessError, Scores, open_gallery
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.thresholds import measure
from likeness.modalities.face import align
from likeness.service._inputs import miniature
from likeness.service._pages import MAX_EXAMPLES, read_examples, slider
from likeness.toolkit.data.images import decode_bytes, encode
from likeness.toolkit.gallery import media
from tests.likeness.service.serving import asking, face_network, photograph, service_of
from tests.sounds import chatter
from tests.tiny_yunet import tiny_yunet


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_yunet(tmp_path_factory.mktemp("faces") / "detector.onnx")


@pytest.fixture(scope="module")
def photographs(detector: Path) -> Any:
    """A model that reads photographs."""
    return face_network(detector.parent, detector)


@pytest.fixture(scope="module")
def crops(detector: Path) -> Any:
    """The same network without a detector."""
    return face_network(detector.parent)


def pixels_at(address: str) -> np.ndarray[Any, Any]:
    kind, _, text = address.partition(",")
    assert kind == "data:image/png;base64"
    return decode_bytes(base64.b64decode(text), "crop")


def test_the_faces_of_a_photograph_and_the_crops_that_the_network_gets(photographs, detector):
    ask = asking(service_of(photographs))
    got = ask("POST", "/faces", files={"file": photograph()}).json()
    assert (got["width"], got["height"], got["found"]) == (128, 96, 3)
    pixels = decode_bytes(photograph(), "")
    faces = align.detect(align.load_detector(detector), pixels)
    for number, face in enumerate(got["faces"]):
        assert face["number"] == number
        assert face["box"] == pytest.approx(faces.boxes[number].tolist(), abs=0.05)
        expected = align.crop(pixels, faces.landmarks[number], (112, 96))
        assert (pixels_at(face["crop"]) == expected).all()
    assert got["chosen"] == align.choose_face(faces, 96, 128, "central")
    none = ask("POST", "/faces", files={"file": photograph(())}).json()
    assert (none["faces"], none["chosen"]) == ([], None)


def test_the_face_that_somebody_chose_is_compared_searched_and_enrolled(photographs, tmp_path):
    gallery = open_gallery(str(tmp_path), photographs.meta)
    ask = asking(service_of(photographs, gallery, keeps_media=True))
    found = ask("POST", "/faces", files={"file": photograph()}).json()
    crop_of = {face["number"]: pixels_at(face["crop"]) for face in found["faces"]}
    both = {"first": photograph(), "second": photograph()}

    def score(**faces: int) -> float:
        return float(ask("POST", "/verify", files=both, data=faces).json()["score"])

    assert score() == pytest.approx(1)
    assert score(first_face=1, second_face=1) == pytest.approx(1)
    assert score(first_face=0, second_face=2) < 0.999
    assert score(first_face=0) == pytest.approx(score(first_face=0, second_face=found["chosen"]))
    for number in crop_of:
        who = {"subject": f"face {number}", "faces": number}
        enrolled = ask("POST", "/enrol", data=who, files={"files": photograph()})
        assert (enrolled.status_code, enrolled.json()["kept"]) == (201, 1)
    for number in crop_of:
        matches = ask("POST", "/identify", data={"face": number}, files={"file": photograph()})
        assert matches.json()["matches"][0]["subject"] == f"face {number}"
        # What is kept is the crop of that face alone, as far as a JPEG goes.
        kept = decode_bytes(ask("GET", f"/media/0/face {number}").content, "kept")
        distances = [np.abs(kept.astype(float) - crop_of[other]).mean() for other in range(3)]
        assert np.argmin(distances) == number
    for wrong in (3, -1, "x"):
        refused = ask("POST", "/verify", files=both, data={"first_face": wrong})
        assert refused.status_code == 422
    twice = {"subject": "x", "faces": [0, 1]}
    assert ask("POST", "/enrol", data=twice, files={"files": photograph()}).status_code == 422
    gallery.close()


def test_a_model_of_crops_refuses_a_photograph_and_says_what_it_takes(crops):
    ask = asking(service_of(crops))
    takes = ask("GET", "/health").json()["takes"]
    assert (takes["kind"], takes["height"], takes["width"]) == ("crops", 112, 96)
    crop = encode(np.random.default_rng(0).integers(0, 255, (112, 96, 3), dtype=np.uint8))
    assert ask("POST", "/verify", files={"first": crop, "second": crop}).status_code == 200
    refused = ask("POST", "/verify", files={"first": crop, "second": photograph()})
    assert refused.status_code == 422
    assert "the second file: the image has 96 x 128 pixels" in refused.json()["error"]
    assert "--detector" in refused.json()["error"]
    refused = ask("POST", "/verify", files={"first": b"no image", "second": photograph()})
    assert "the first file: " in refused.json()["error"]
    assert "the second file: the image has 96 x 128 pixels" in refused.json()["error"]
    chosen = ask("POST", "/verify", files={"first": crop, "second": crop}, data={"first_face": 0})
    assert chosen.status_code == 422
    assert ask("POST", "/faces", files={"file": crop}).status_code == 422


def test_thresholds_say_what_they_mean_or_why_there_are_none(crops):
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.normal(2, 1, 200), rng.normal(0, 1, 2000)))
    scores = Scores(values, np.arange(2200) < 200)
    entry, _ = measure(scores, Origin("dot"), data="demo", fars=[0.01], subjects=9)
    service = service_of(crops, slider=slider(entry, ""))
    # Who reads it needs no token, like /health: it says nothing of anybody.
    got = asking(service, local=False, token="")("GET", "/thresholds").json()
    assert (got["data"], got["subjects"], got["nontargets"]) == ("demo", 9, 2000)
    assert (got["least_far"], got["least_frr"]) == (0.005, 0.05)
    values_of = [place[0] for place in got["places"]]
    assert values_of == sorted(values_of)
    assert all(far >= 0.005 and frr >= 0.05 for _, far, frr in got["places"])
    assert {mark["threshold"] for mark in got["marks"]} <= set(values_of)
    without = asking(service_of(crops, slider=slider(None, "because")))
    assert without("GET", "/thresholds").json()["reason"] == "because"


def test_examples_are_given_out_by_number_and_nothing_else_is(crops, tmp_path):
    crop = np.random.default_rng(0).integers(0, 255, (112, 96, 3), dtype=np.uint8)
    (tmp_path / "secret.txt").write_text("secret")
    folder = tmp_path / "examples"
    for name in ("ann/1.png", "ann/2.png", "bob/1.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode(crop))
    (folder / "notes.txt").write_text("no picture")
    (folder / "link.png").symlink_to(tmp_path / "secret.txt")
    (folder / ".hidden.png").write_bytes(encode(crop))
    (folder / "large.png").write_bytes(encode(crop) + bytes(200_000))
    examples = read_examples(folder, "face", 100_000)
    assert [one.name for one in examples] == ["ann/1.png", "ann/2.png", "bob/1.png"]
    service = service_of(crops, examples=examples)
    ask = asking(service)
    assert len(ask("GET", "/examples").json()["examples"]) == 3
    for subject in range(30):
        for shot in range(3):
            path = tmp_path / "many" / f"{subject:02}" / f"{shot}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(crop))
    many = [one.name for one in read_examples(tmp_path / "many", "face", 100_000)]
    # two of each folder, so that there are two of one subject to compare
    assert many == [f"{i:02}/{shot}.png" for i in range(MAX_EXAMPLES // 2) for shot in (0, 1)]
    (folder / "ann/1.png").write_text("changed")  # they were read at the start
    got = ask("GET", "/examples/0")
    assert (got.content, got.headers["content-type"]) == (encode(crop), "image/png")
    for path in ("/examples/3", "/examples/-1", "/examples/ann/1.png", "/examples/..%2fsecret.txt"):
        assert ask("GET", path).status_code in (404, 422)
    stranger = asking(service, local=False, token="")
    assert stranger("GET", "/examples").status_code == 401
    assert stranger("GET", "/examples/0").status_code == 401
    with pytest.raises(LikenessError):
        read_examples(folder, "speaker", 100_000)


def test_media_are_kept_only_if_the_server_is_told_so(photographs, tmp_path):
    for keeps in (False, True):
        folder = tmp_path / str(keeps)
        gallery = open_gallery(str(folder), photographs.meta)
        service = service_of(photographs, gallery, keeps_media=keeps)
        ask = asking(service)
        sent = [("files", photograph(((7, 5),))), ("files", photograph(((8, 4),)))]
        ask("POST", "/enrol", data={"subject": "Ann / O'Neil"}, files=sent)
        got = ask("GET", "/gallery/Ann %2F O'Neil").json()["enrolments"]
        assert [one["number"] for one in got] == [0, 1]
        rows = gallery.enrolments("Ann / O'Neil")
        assert [one["norm"] for one in got] == pytest.approx(np.linalg.norm(rows, axis=1).tolist())
        kept = ask("GET", "/media/1/Ann %2F O'Neil")
        if keeps:
            assert {one["medium"] for one in got} == {"image"}
            assert all(one["date"] for one in got)
            assert kept.headers["content-type"] == "image/jpeg"
            assert asking(service, local=False, token="")("GET", "/media/1/x").status_code == 401
        else:
            assert {(one["medium"], one["date"]) for one in got} == {(None, None)}
            assert kept.status_code == 404
            assert not (folder / media.FOLDER).exists()
        assert ask("GET", "/gallery/nobody").status_code == 404
        assert ask("GET", "/media/7/Ann %2F O'Neil").status_code == 404
        ask("DELETE", "/gallery/Ann %2F O'Neil")
        assert not [path for path in folder.rglob("*") if path.suffix in media.ENDINGS]
        gallery.close()
    with pytest.raises(LikenessError):
        service_of(photographs, keeps_media=True)


def test_who_is_removed_while_enrolling_leaves_no_media(photographs, tmp_path, monkeypatch):
    """Somebody asks for a removal as soon as a subject is stored."""
    removed: list[Any] = []
    removers: list[threading.Thread] = []
    gallery = open_gallery(str(tmp_path), photographs.meta)
    service = service_of(photographs, gallery, keeps_media=True)
    store = gallery.enrol

    def enrol(*embeddings: Any) -> None:
        store(*embeddings)
        remover = threading.Thread(target=lambda: removed.append(service.remove("Ann")))
        remover.start()
        remover.join(0.2)  # it may wait until the media are kept
        removers.append(remover)

    monkeypatch.setattr(gallery, "enrol", enrol)
    assert service.enrol("Ann", [photograph()])["kept"] == 1
    for remover in removers:
        remover.join()
    assert removed == [{"subject": "Ann", "subjects": 0}]
    assert not [path for path in (tmp_path / media.FOLDER).rglob("*") if path.is_file()]


def test_of_sound_a_few_seconds_are_kept_and_nothing_else_of_the_file(tmp_path):
    path = tmp_path / "a.wav"
    with soundfile.SoundFile(path, "w", 8000, 2, subtype="FLOAT", format="WAV") as file:
        file.title = "where it was recorded"
        file.write(np.stack([chatter(12, 8000, level=0.8)] * 2, axis=1))
    voices: Any = SimpleNamespace(modality="speaker")
    small, ending = miniature(voices, Item("a", path))
    wave, rate_hz = soundfile.read(io.BytesIO(small))
    assert (ending, rate_hz, wave.shape) == (".flac", 16_000, (8 * 16_000,))
    assert b"where it was" not in small
