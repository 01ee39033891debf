"""From photographs to embeddings with a YuNet detector: in Python and by commands; with
a user's own network over 112 x 96 crops.
"""

from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness import Item, LikenessError
from likeness.eval.formats import embeddings
from likeness.modalities.face import align, ijb, images
from likeness.models import _insightface, load
from likeness.models._insightface import Pixels, split
from likeness.models.reading import ijb_pack
from likeness.toolkit.data.images import as_channels, encode
from tests.modalities.face.test_face_data import make_pack
from tests.scripts import printed, program, refused, run_command
from tests.tiny_yunet import network, tiny_yunet

SAID = "@size=112x96,mean=127.5,std=128,order=bgr"


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_yunet(tmp_path_factory.mktemp("detector") / "detector.onnx")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network over crops of 112 x 96."""
    return network(tmp_path_factory.mktemp("own") / "own.onnx", (112, 96))


@pytest.fixture(scope="module")
def photographs(module_path: Path) -> Path:
    """Three photographs with a face, in two folders, and one without any."""
    rng = np.random.default_rng(0)
    for name, cell in (("ann/1", (6, 5)), ("ann/2", (7, 5)), ("bob/1", (8, 4)), ("bob/2", None)):
        pixels = rng.integers(0, 90, (96, 128, 3), dtype=np.uint8)
        if cell:
            pixels[8 * cell[1] : 8 * cell[1] + 8, 8 * cell[0] : 8 * cell[0] + 8, 0] = 255
        (module_path / name).parent.mkdir(exist_ok=True)
        (module_path / f"{name}.png").write_bytes(encode(pixels))
    return module_path


def by_hand(own: Path, detector: Path, path: Path) -> np.ndarray:
    """The embedding of one photograph: found, cropped, scaled and run without Likeness's models."""
    import onnxruntime

    model = align.load_detector(detector)
    photo = images.decode(Item("x", path))
    (crop,), count = align.align_faces(model, photo, size=(112, 96), choose="central")
    assert count == 1
    pixels = (crop[..., ::-1].astype(np.float32).transpose(2, 0, 1) - 127.5) / 128
    session = onnxruntime.InferenceSession(str(own), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"data": pixels[None]})[0][0])


def test_photographs_become_embeddings_and_verdicts(own, detector, photographs):
    names = ["ann/1.png", "ann/2.png", "bob/1.png"]
    expected = np.stack([by_hand(own, detector, photographs / name) for name in names])
    model = likeness.load(f"insightface:{own}{SAID}", detector=detector)
    with pytest.warns(UserWarning, match="1 of 4 inputs"):
        found = model.embed(photographs)
    assert list(found.ids) == names
    bound = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(found.matrix, expected, rtol=0, atol=bound)
    assert found.meta["faces"].startswith("central, aligned to 112 x 96, detector ")

    verdict = model.verify(*(photographs / name for name in names[:2]))
    cosine = float(expected[0] @ expected[1] / np.linalg.norm(expected[:2], axis=1).prod())
    assert verdict.score == pytest.approx(cosine, abs=1e-5)


def test_a_pack_with_yunet_takes_photographs(detector, photographs, tmp_path):
    """A folder like OpenCV zoo's: YuNet and a recognition network."""
    (tmp_path / "a.onnx").write_bytes(detector.read_bytes())
    network(tmp_path / "recognition.onnx", (112, 112))
    assert load.find_detector(f"insightface:{tmp_path}") == tmp_path / "a.onnx"
    found = likeness.load(f"insightface:{tmp_path}").embed([photographs / "ann" / "1.png"])
    assert found.meta["faces"].startswith("central, aligned to 112 x 112")


def test_pixels_come_from_the_file_or_are_stated(tmp_path):
    half = (127.5, 127.5)
    fixed = network(tmp_path / "fixed.onnx", (112, 96))
    assert _insightface.find(str(fixed)).pixels == Pixels((112, 96), *half)
    free = network(tmp_path / "free.onnx", ("height", "width"), trained=(112, 96))
    said = _insightface.find(f"{free}{SAID}")
    assert said.pixels == Pixels((112, 96), 127.5, 128.0, bgr=True)
    # mean=127.5 are the same pixels, stated.
    stated = [f"{fixed}@{said}" for said in ("size=112x96", "mean=127.5", "std=128", "order=bgr")]
    names = [fixed, *stated, f"{free}{SAID}"]
    digests = {load.load_named(f"insightface:{name}").digest for name in names}
    assert len(digests) == 5
    odd = network(tmp_path / "a@size=1.onnx", (112, 112))
    assert split(str(odd)) == (odd, {})


def test_faces_of_ijb_are_aligned_to_the_frame_of_the_model(tmp_path):
    make_pack(tmp_path / "pack")
    name = f"insightface:{network(tmp_path / 'n.onnx', (112, 112))}@size=112x112,frame=dlib"
    model, items = ijb_pack(load.load_named(name), tmp_path / "pack")
    points = ijb.read_landmarks(tmp_path / "pack/meta/ijbc_name_5pts_score.txt")[items[0].id]
    crop = align.crop(images.decode(items[0]), points, frame="dlib")
    assert np.array_equal(model.read(items[0]), as_channels(crop))


@pytest.mark.parametrize(
    ("size", "stated", "says"),
    [
        (("height", "width"), "", "size is known"),
        ((112, 96), "@size=112x112", "size is known"),
        ((96, 96), "", "another network"),
        ((112, 112), "@scale=2", "not understood"),
    ],
)
def test_wrong_sizes_and_statements_are_refused(tmp_path, size, stated, says):
    file = network(tmp_path / "n.onnx", size)
    with pytest.raises(ValueError, match=says):
        load.load_named(f"insightface:{file}{stated}")


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photograph of two faces of scores 1 and .97, one of a face of score .7, one of none."""
    folder = tmp_path_factory.mktemp("album")
    shots = {"two": {(3, 5): 255, (12, 5): 247}, "weak": {(7, 5): 178}, "none": {}}
    for name, cells in shots.items():
        pixels = np.zeros((96, 128, 3), dtype=np.uint8)
        pixels[8:40, 16:56, 2] = 200  # the detector looks at red
        for (x, y), red in cells.items():
            pixels[8 * y : 8 * y + 8, 8 * x : 8 * x + 8, 0] = red
        (folder / f"{name}.png").write_bytes(encode(pixels))
    return folder


def test_all_faces_of_an_album_are_embedded_searched_and_written(own, detector, album, tmp_path):
    model = likeness.load(f"insightface:{own}{SAID}", detector=detector)
    found = model.faces(album / "two.png")
    assert found.scores == pytest.approx([1, 247 / 255], abs=1e-5)
    assert found.boxes[0, 0] < found.boxes[1, 0]
    assert found.crops.shape == (2, 112, 96, 3)
    assert found.points.shape == (2, 5, 2)
    nobody = model.faces(album / "none.png")
    assert (len(nobody.boxes), nobody.embeddings.shape[0]) == (0, 0)
    with pytest.raises(LikenessError, match="--detector"):
        likeness.load(f"insightface:{own}{SAID}").faces(album / "two.png")

    use = ("--model", f"insightface:{own}{SAID}", "--detector", detector)
    out = tmp_path / "e.npz"
    said = printed("embed", *use, "--faces", "all", "--items", album, "--out", out)
    assert "2 unreadable items left out" in said
    stored = embeddings.read_embeddings(out)
    assert list(stored.ids) == ["two.png#1", "two.png#2"]
    np.testing.assert_allclose(stored.matrix, found.embeddings, rtol=1e-5)

    people = ("--gallery", tmp_path / "people", *use)
    assert run_command("gallery", "enrol", album / "two.png", "--subject", "ann", *people) == 0
    rows = printed("gallery", "search", album, *people, "--faces", "all", "-k", 1).splitlines()
    assert [row.split(",")[0] for row in rows if ".png" in row and "ann" in row] == list(stored.ids)
    listed = ("gallery", "cluster", album, "--num-clusters", 1, "--out", tmp_path / "c.csv", *use)
    assert run_command(*listed, "--faces", "all", "--report", tmp_path / "page") == 0
    assert "two.png#2" in (tmp_path / "c.csv").read_text()

    crops = ("align", album, "--out", tmp_path / "crops", "--detector", detector, "--faces", "all")
    assert run_command(*crops, "--size", "112x96") == 0
    written = sorted((tmp_path / "crops").rglob("*.png"))
    assert [path.name for path in written] == ["two#1.png", "two#2.png"]
    for path, crop in zip(written, found.crops, strict=True):
        assert (images.decode(Item("a", path)) == crop).all()


def test_opencv_says_nothing_beside_a_command(detector, album, tmp_path):
    done = program("-m", "likeness", "align", album, "--out", tmp_path, "--detector", detector)
    assert "WARN" not in done.stdout + done.stderr
    assert "1 crop in" in done.stdout


def test_the_lowest_score_of_a_face_is_an_option(own, detector, album, tmp_path):
    use = ("--model", f"insightface:{own}{SAID}", "--detector", detector)
    weak = album / "weak.png"
    said = refused("verify", weak, weak, *use)
    assert "score of 0.9 or more: the best score seen is 0.70" in said
    none = album / "none.png"
    assert "nothing like a face" in refused("verify", none, none, *use)
    out = tmp_path / "e.npz"
    assert run_command("embed", *use, "--min-score", 0.6, "--items", album, "--out", out) == 0
    stored = embeddings.read_embeddings(out)
    assert set(stored.ids) == {"two.png", "weak.png"}
    assert stored.meta["faces"].endswith("scores from 0.6")
    assert "between 0 and 1" in refused("verify", weak, weak, *use, "--min-score", 60)
