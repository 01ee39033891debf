"""What holds nothing is no subject: every reader and every command that reads items refuses it.

Readers are found in the modalities, and commands in the command line, so that a new one fails here
until it says what it does.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from likeness import Item, modalities, open_gallery
from likeness.errors import _plain_warnings
from likeness.modalities.face import align
from likeness.modalities.image import images
from likeness.modalities.speaker import audio, long
from likeness.models.run import load_model
from likeness.toolkit.data.reading import Empty, Lack, Unreadable, refuse_empty
from tests.likeness.commands.test_contract import COMMANDS
from tests.likeness.service.serving import asking, service_of
from tests.modalities.face.test_face_align import tiny_detector
from tests.scripts import run_command
from tests.sounds import chatter

HZ = 16_000


def noise(exponent: float, seconds: float = 3.0, level: float = 0.1, seed: int = 0) -> np.ndarray:
    """Noise whose power falls by this exponent of the frequency."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(round(seconds * HZ)))
    spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** (exponent / 2)
    wave = np.fft.irfft(spectrum)
    return np.asarray(level * wave / wave.std())


TIME = np.arange(3 * HZ) / HZ
HUM = sum(0.2 / k * np.sin(2 * np.pi * 50 * k * TIME + k) for k in range(1, 30))
SPOKEN = chatter(3.0)
SOUNDS = {
    "silence": np.zeros(3 * HZ),
    "dithered silence": np.random.default_rng(0).integers(-1, 2, 3 * HZ) / 2**15,
    "a constant": np.full(3 * HZ, 0.3),
    "clipped everywhere": np.ones(3 * HZ),
    "NaN": np.full(3 * HZ, np.nan),
    "white noise": noise(0),
    "faint white noise": noise(0, level=0.001, seed=1),
    "short white noise": noise(0, seconds=0.5),
    "long white noise": noise(0, seconds=60.0),
    "pink noise": noise(1),
    "brown noise": noise(2, level=0.2),
    "blue noise": noise(-1),
    "noise that swells": noise(0) * (1 + np.sin(2 * np.pi * 4 * TIME)),
    "noise that fades": noise(0) * np.exp(-2 * TIME),
    "noise that clips": np.sign(noise(0)),
    "noise after silence": np.r_[np.zeros(HZ), noise(1, seconds=2.0)],
    "noise in one band": np.convolve(
        noise(0), np.hanning(40) * np.sin(np.arange(40) * 0.4), "same"
    ),
    "hum": HUM,
    "hum in noise": HUM + noise(0, level=0.02),
    "a tone": 0.5 * np.sin(2 * np.pi * 440 * TIME),
    "a tone in noise": 0.5 * np.sin(2 * np.pi * 1000 * TIME) + noise(0, level=0.002),
    "a sweep": 0.5 * np.sin(2 * np.pi * (200 + 300 * TIME) * TIME),
    "a click": np.eye(1, 3 * HZ, HZ)[0],
    "antiphase": np.stack([SPOKEN, -SPOKEN], axis=1),
    "antiphase and noise": np.stack([SPOKEN + noise(0, level=0.001), -SPOKEN], axis=1),
    "too short": SPOKEN[: HZ // 20],
}
_Y, _X = np.mgrid[0:112, 0:112] / 112
_RNG = np.random.default_rng(0)


def grey(levels: np.ndarray) -> np.ndarray:
    """Levels (112, 112) or (112, 112, 3) as a picture."""
    whole = np.clip(np.round(levels), 0, 255).astype(np.uint8)
    return np.repeat(whole[..., None], 3, axis=2) if whole.ndim == 2 else whole


PICTURES = {
    "black": grey(0 * _X),
    "white": grey(0 * _X + 255),
    "red": grey(np.full((112, 112, 3), (255, 0, 0))),
    "noise of a sensor": grey(120 + 4 * _RNG.standard_normal((112, 112, 3))),
    "strong noise of a sensor": grey(120 + 15 * _RNG.standard_normal((112, 112, 3))),
    "noise in the dark": grey(np.abs(1.5 * _RNG.standard_normal((112, 112, 3)))),
    "a gradient": grey(255 * _X),
    "a gradient of two colours": grey(np.stack([255 * _X, 255 - 255 * _X, 200 * _Y], axis=2)),
    "a gradient in noise": grey(60 + 100 * _Y + 5 * _RNG.standard_normal((112, 112))),
    "a vignette": grey(230 * (1 - (_X - 0.5) ** 2 - (_Y - 0.5) ** 2)),
    "one pixel": np.array([[[1, 2, 3]]], np.uint8),
    "a line": grey(255 * _X)[:3],
    "transparent": np.dstack([grey(255 * (_X > 0.5)), np.zeros((112, 112), np.uint8)]),
}
# What readers need beside the item. An aligning one finds no face, or cuts one of nothing.
READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "speaker.audio": lambda _: {},
    "speaker.long": lambda _: {"chunk_seconds": 1.0},
    "face.images": lambda _: {"fit": "resize"},
    "face.align": lambda folder: {"detector": str(tiny_detector(folder / "d.onnx"))},
    "face.ijb": lambda folder: {"landmarks": str(folder / "landmarks.txt")},
    "image.images": lambda _: {},
    "image.hub_images": lambda _: {},
    "image.small_sets": lambda _: {},
}
FOUND = {
    name.removeprefix("likeness.modalities."): importlib.import_module(name).read
    for _, name, is_package in pkgutil.walk_packages(modalities.__path__, "likeness.modalities.")
    if not is_package and not name.rpartition(".")[2].startswith("_")
    for read in [getattr(importlib.import_module(name), "read", None)]
    if inspect.isfunction(read) and read.__module__ == name and "embedding" not in name
}


def sound(path: Path, wave: np.ndarray) -> Path:
    soundfile.write(path, wave, HZ, subtype="FLOAT")
    return path


def picture(path: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def test_every_reader_is_known():
    assert FOUND.keys() == READERS.keys()


@pytest.mark.parametrize("kind", SOUNDS)
@pytest.mark.parametrize("reader", [name for name in READERS if name.startswith("speaker")])
def test_sounds_that_hold_no_voice_are_refused(reader, kind, tmp_path):
    item = Item("a", sound(tmp_path / "a.wav", SOUNDS[kind]))
    with pytest.raises(Unreadable):
        list(FOUND[reader](item, **READERS[reader](tmp_path)))


@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize("reader", [name for name in READERS if not name.startswith("speaker")])
def test_pictures_that_show_nothing_are_refused(reader, kind, tmp_path):
    item = Item("a/1.png", picture(tmp_path / "1.png", PICTURES[kind]))
    (tmp_path / "landmarks.txt").write_text("1.png 38 51 73 51 56 71 41 92 70 92 0.9\n")
    with pytest.raises(Unreadable) as caught:
        FOUND[reader](item, **READERS[reader](tmp_path))
    if reader != "face.ijb":
        assert isinstance(caught.value, Empty)


# What is typed for each command that decodes items, of a folder of files that hold nothing; and the
# commands that decode none.
VOICE = "--model likeness:voice"
CALLS = {
    "check": "check {data} --strict",
    "align": "align {data} --out {out} --detector {detector}",
    "train": "train speaker/folders --data {data} --check",
    "embed": f"embed {VOICE} --items {{data}} --out {{out}}.npz",
    "verify": "verify {data}/a/0.wav {data}/a/0.wav",
    "verify --pairs": "verify --pairs {pairs} --root {data} --out {out}.csv",
    "bench": f"bench {VOICE} --trials {{pairs}} --root {{data}}",
    "gallery enrol": f"gallery enrol {{data}} {VOICE} --gallery {{out}}",
    "gallery search": f"gallery search {{data}} {VOICE} --gallery {{people}} --threshold 0.5",
    "gallery cluster": f"gallery cluster {{data}} {VOICE} --threshold 0.5 --out {{out}}.csv",
    "threshold": f"threshold --unlabelled {{data}} {VOICE} --out {{out}}.json",
}
# Both train, and export calibrates, by the reading of a recipe; `serve` is tested below.
BY_READERS = {"demo", "compare", "reproduce", "export", "serve"}
DECODES_NONE = {"recipes", "prepare", "lists", "score", "evaluate", "identify", "retrieve"}
DECODES_NONE |= {"fit plda", "fit calibration", "fit fusion"}
DECODES_NONE |= {"gallery check", "gallery list", "gallery remove"}


def test_every_command_is_known():
    assert {name.partition(" --")[0] for name in CALLS} | BY_READERS | DECODES_NONE == {*COMMANDS}


@pytest.mark.parametrize("command", [name for name in CALLS if name != "align"])
def test_commands_name_what_holds_no_voice(command, tmp_path, capfd):
    places = {name: tmp_path / name for name in ("data", "people", "pairs", "out")}
    for number, label in enumerate("abcdefghijklmnop" * 2):
        (places["data"] / label).mkdir(parents=True, exist_ok=True)
        wave = noise(0, level=0.001, seed=number)
        sound(places["data"] / label / f"{number // 16}.wav", wave)
    places["pairs"].write_text("a/0.wav a/1.wav 1\na/0.wav b/0.wav 0\n")
    if command == "gallery search":
        voices = tmp_path / "voices" / "ann"
        voices.mkdir(parents=True)
        sound(voices / "1.wav", chatter(2.0))
        enrol = ("enrol", voices.parent, *VOICE.split(), "--gallery", places["people"])
        assert run_command("gallery", *enrol) == 0
        capfd.readouterr()
    code = run_command(*(word.format(**places) for word in CALLS[command].split()))
    shown = "".join(capfd.readouterr())
    assert code or command in ("verify --pairs", "bench")
    assert "noise" in shown
    assert "same subject, probability" not in shown
    assert not (tmp_path / "out.npz").exists()


def test_align_names_pictures_that_show_nothing(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number, pixels in enumerate(PICTURES.values()):
        picture(data / f"{number}.png", pixels)
    found = align.align_folder(data, tmp_path / "out", detector=tiny_detector(tmp_path / "d"))
    assert not found.done
    assert len(found.failures) == len(PICTURES)


def test_the_service_refuses_it_too(run, tmp_path):
    model = load_model(run)
    gallery = open_gallery(str(tmp_path / "people"), model.meta)
    ask = asking(service_of(model, gallery))
    spoken = sound(tmp_path / "spoken.wav", SPOKEN).read_bytes()
    for kind, wave in SOUNDS.items():
        file = sound(tmp_path / "a.wav", wave).read_bytes()
        sent = {"/verify": {"first": file, "second": spoken}, "/identify": {"file": file}}
        for route, files in (*sent.items(), ("/enrol", {"files": file})):
            got = ask("POST", route, files=files, data={"subject": "ann"})
            assert got.status_code == 422, (route, kind)
    assert ask("GET", "/gallery").json()["subjects"] == 0
    gallery.close()


def test_where_a_doubt_is_possible_there_is_a_warning(tmp_path):
    """A vowel that somebody holds, faint speech, and what may be a texture."""
    vowel = sum(np.sin(2 * np.pi * 110 * k * TIME) / k for k in range(1, 20)) * 0.1
    for wave, word in ((vowel, "steady"), (SPOKEN * 1e-3, "nearly silent")):
        item = Item("a", sound(tmp_path / "a.wav", wave))
        for read in (audio.read, lambda item: list(long.read(item, chunk_seconds=2.0))):
            with pytest.warns(UserWarning, match=word):
                assert len(read(item))
    snow = picture(tmp_path / "a.png", _RNG.integers(0, 256, (112, 112, 3), dtype=np.uint8))
    with pytest.warns(UserWarning, match="noise"):
        assert images.read(Item("a", snow)).shape == (3, 112, 112)


def test_warnings_of_many_items_are_counted(capsys):
    with _plain_warnings():
        for number in range(50):
            refuse_empty(f"{number}.wav", Lack("it hardly changes", is_sure=False))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert "30 more" in lines[-1]
