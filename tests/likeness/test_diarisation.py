"""Who speaks when: windows, votes, clusters and names, on voices whose embeddings are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import likeness
from eval.diarisation import diarisation_errors
from eval.formats.rttm import Turn, read_turns, write_turns
from eval.types import Embeddings
from likeness.cli import main
from likeness.diarisation.clusters import Clustering, between, clustered
from likeness.diarisation.diarise import Names, segmented
from likeness.diarisation.windows import windows_of
from modalities.speaker import audio
from modalities.speaker.decoding import BadAudio
from toolkit.data.items import Item
from toolkit.gallery.gallery import open_gallery
from toolkit.models.loaded import Loaded

RATE_HZ = 16_000
VOICES = {"ann": 500.0, "bob": 1500.0, "cem": 3000.0}


class Bands:
    """An embedder whose embedding is the level of a few bands: a tone is a voice."""

    pads_exactly, is_on_cpu, dim = False, True, 8

    def embed_batch(self, inputs: np.ndarray, lengths: object = None) -> np.ndarray:
        spectrum = np.abs(np.fft.rfft(inputs, axis=1)) ** 2
        bands = np.array_split(spectrum, self.dim, axis=1)
        return np.sqrt(np.stack([band.sum(axis=1) for band in bands], axis=1)).astype(np.float32)

    def used_length(self, length: int) -> int:
        return length


def model(read: Callable[..., object] = audio.read, modality: str = "speaker") -> Loaded:
    return Loaded(Bands(), read, modality, "cosine", "b" * 64, 0)  # type: ignore[arg-type]


def spoken(*parts: tuple[str, float], path: Path, rate_hz: int = RATE_HZ) -> list[Turn]:
    """Write tones with pauses of half a second between them; give who speaks when."""
    rng = np.random.default_rng(0)
    waves, turns, place = [], [], 0.5
    for name, seconds in parts:
        time = np.arange(round(rate_hz * seconds)) / rate_hz
        pause = np.zeros(rate_hz // 2)
        waves += [pause, 0.3 * np.sin(2 * np.pi * VOICES[name] * time)]
        turns.append(Turn(path.stem, place, place + seconds, name))
        place += seconds + 0.5
    wave = np.concatenate([*waves, np.zeros(rate_hz // 2)])
    soundfile.write(path, wave + rng.normal(0, 1e-4, len(wave)), rate_hz)
    return turns


def test_who_speaks_is_found_without_a_number(tmp_path: Path) -> None:
    path = tmp_path / "talk.flac"
    truth = spoken(("ann", 3), ("bob", 2.2), ("ann", 4), ("cem", 3.1), ("bob", 0.4), path=path)
    found = segmented(model(), Item("talk", path), Clustering(threshold=0.5, least_windows=1))
    assert found.speakers == ("speaker-1", "speaker-2", "speaker-3")
    errors = diarisation_errors(truth, found.turns)
    assert errors.confusion == 0
    assert errors.rate < 0.04  # speech is 40 ms wider on each side than the tones
    assert dict(errors.mapping["talk"]) == {
        "ann": "speaker-1",
        "bob": "speaker-2",
        "cem": "speaker-3",
    }
    assert all(one.score is None or one.score > 0.9 for one in found)
    assert found.seconds == pytest.approx(15.7)


def test_a_change_without_a_pause_is_found_by_the_votes(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    time = np.arange(5 * RATE_HZ) / RATE_HZ
    halves = [0.3 * np.sin(2 * np.pi * VOICES[name] * time) for name in ("ann", "bob")]
    pause = np.random.default_rng(0).normal(0, 1e-4, RATE_HZ)
    soundfile.write(path, np.concatenate([pause, *halves, pause]), RATE_HZ)
    found = segmented(model(), Item("talk", path), Clustering(0.5, 2, 2))
    first, second = found.segments
    assert first.end == second.start == pytest.approx(6, abs=0.4)  # half a step of the windows
    assert (first.speaker, second.speaker) == ("speaker-1", "speaker-2")


@pytest.mark.parametrize("speakers", [0, (0, 2), (1, 0), (3, 2), -1])
def test_numbers_of_speakers_that_nobody_can_mean_are_refused(
    speakers: int | tuple[int, int],
) -> None:
    with pytest.raises(ValueError, match="speakers: give at least 1"):
        likeness.diarise("talk.wav", speakers=speakers)


@pytest.mark.parametrize(("bounds", "number"), [((1, 1), 1), ((2, 2), 2), ((1, 2), 2), ((3, 9), 3)])
def test_the_number_of_speakers_is_kept(
    tmp_path: Path, bounds: tuple[int, int], number: int
) -> None:
    path = tmp_path / "talk.wav"
    spoken(("ann", 3), ("bob", 4), ("cem", 5), path=path)
    for threshold in (None, 0.5):
        found = segmented(model(), Item("talk", path), Clustering(threshold, *bounds))
        assert len(found.speakers) == number


def test_windows_cover_the_speech_and_are_the_recording(tmp_path: Path) -> None:
    """Each is cut out of the blocks where a stretch of the file would be read."""
    path = tmp_path / "talk.wav"
    spoken(("ann", 4.3), ("bob", 0.3), ("ann", 3), path=path, rate_hz=8000)
    heard: list[np.ndarray] = []

    class Hears(Bands):
        def embed_batch(self, inputs: np.ndarray, lengths: object = None) -> np.ndarray:
            heard.extend(inputs)
            return super().embed_batch(inputs, lengths)

    loaded = Loaded(Hears(), audio.read, "speaker", "cosine", "b" * 64, 0)  # type: ignore[arg-type]
    windows = windows_of(loaded, Item("talk", path))
    for number, (first, last) in enumerate(windows.stretches / 100):
        own = windows.spans[windows.stretch_of == number]
        assert own[0, 0] <= first + 1e-9
        assert own[-1, 1] >= last - 1e-9
        assert np.diff(own[:, 0]).max(initial=0) <= 0.75 + 1e-9
    lengths = windows.spans[:, 1] - windows.spans[:, 0]
    assert sorted(set(np.round(lengths, 6))) == [1.0, 1.5]  # short speech is widened
    whole = audio.read(Item("talk", path))
    cut = np.rint(windows.spans * RATE_HZ).astype(int)
    expected = {whole[start:end].tobytes() for start, end in cut}
    assert {wave.tobytes() for wave in heard} == expected
    assert len(expected) == len(windows.kept) == len(windows.spans)


def test_names_are_those_of_a_gallery(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    spoken(("cem", 3), ("ann", 3), ("bob", 3), path=path)
    for name in ("ann", "bob"):
        spoken((name, 2), path=tmp_path / f"{name}.wav")
    loaded = model()
    rows = [
        loaded.embedder.embed_batch(audio.read(Item(n, tmp_path / f"{n}.wav"))[None])[0]
        for n in ("ann", "bob")
    ]
    gallery = open_gallery(tmp_path / "people", loaded.meta)
    gallery.enrol(Embeddings(("a", "b"), np.stack(rows), loaded.meta), ["ann lee", "bob"])
    how = Clustering(0.5)
    found = segmented(loaded, Item("talk", path), how, Names(gallery, 0.8))
    assert found.speakers == ("unknown-1", "ann lee", "bob")
    assert dict(found.matches)["bob"] > 0.9
    found.save(tmp_path / "out.rttm")
    assert [turn.speaker for turn in read_turns(tmp_path / "out.rttm")] == [
        "unknown-1",
        "ann_lee",
        "bob",
    ]
    nobody = segmented(loaded, Item("talk", path), how, Names(gallery, None))
    assert nobody.speakers == ("unknown-1", "unknown-2", "unknown-3")
    gallery.close()


def test_more_windows_than_are_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2, 0], 60)
    rows = (np.eye(8)[truth] + rng.normal(0, 0.1, (240, 8))).astype(np.float32)
    monkeypatch.setattr("likeness.diarisation.clusters.MOST_WINDOWS", 50)
    assert clustered(rows, model(), Clustering(0.5))[0].tolist() == truth.tolist()


def test_an_outlier_is_no_speaker() -> None:
    """A tree that is cut into two has one window alone; two voices and the outlier are meant."""
    rng = np.random.default_rng(0)
    rows = np.repeat([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1]], [20, 20, 1], axis=0)
    rows = (rows + rng.normal(0, 0.01, rows.shape)).astype(np.float32)
    labels, _ = clustered(rows, model(), Clustering(None, 2, 2))
    assert labels[:40].tolist() == [0] * 20 + [1] * 20


def test_scores_of_one_value_have_a_threshold() -> None:
    assert between(np.full(10, 0.3)) == pytest.approx(0.3)
    assert np.isfinite(between(np.array([0.1, 0.1, 0.1, 5.0])))


def test_what_cannot_be_diarised_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.wav"
    spoken(("ann", 3), path=path)
    with pytest.raises(ValueError, match="face"):
        segmented(model(modality="face"), Item("talk", path))
    with pytest.raises(ValueError, match="spoken"):
        segmented(model(read=spoken), Item("talk", path))
    with pytest.raises(BadAudio, match="at most 2 s"):
        segmented(model(), Item("talk", path), max_seconds=2)
    with pytest.raises(ValueError, match="2 to 1"):
        Clustering(None, 2, 1)
    with pytest.raises(ValueError, match="gallery"):
        likeness.diarise(path, far=0.01)


def test_silence_has_no_segments(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "s.wav", np.zeros(RATE_HZ), RATE_HZ)
    found = segmented(model(), Item("s", tmp_path / "s.wav"))
    assert (len(found), found.speakers, found.seconds) == (0, (), 1.0)
    assert "no speech" in found.text()


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["diarise", *(str(argument) for argument in arguments)])
    return int(ended.value.code or 0)


def test_the_command_writes_rttm_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    truth = spoken(("ann", 3), ("bob", 3), path=tmp_path / "my talk.wav")
    rng = np.random.default_rng(1)  # the model needs something above 7 kHz
    wave, _ = soundfile.read("my talk.wav")
    soundfile.write("my talk.wav", wave + rng.normal(0, 1e-3, len(wave)), RATE_HZ)
    write_turns(Path("truth.rttm"), [turn._replace(file="my_talk") for turn in truth])
    Path("bad.wav").write_bytes(b"RIFF")
    command = ("my talk.wav", "bad.wav", "--speakers", 1, "--reference", "truth.rttm")
    assert run(*command, "--out", "o.rttm") == 0
    out, err = capsys.readouterr()
    assert "skipped bad.wav" in err
    assert "error rate" in out
    assert {turn.file for turn in read_turns(Path("o.rttm"))} == {"my_talk"}
    before = Path("o.rttm").read_bytes()
    assert run("my talk.wav", "--speakers", 1) == 0  # prints, and writes nothing
    assert "speaker-1" in capsys.readouterr().out
    for wrong in (
        ["bad.wav", "--out", "o.rttm"],
        ["my talk.wav", "--out", "o.txt"],
        ["my talk.wav", "my_talk.flac", "--out", "o.rttm"],
        ["my talk.wav", "--far", 0.01, "--out", "o.rttm"],
        ["my talk.wav", "--speakers", 2, "--max-speakers", 3, "--out", "o.rttm"],
        ["my talk.wav", "--collar", 0.2, "--out", "o.rttm"],
        ["my talk.wav", "--gallery", "nobody", "--far", 0.01, "--out", "o.rttm"],
    ):
        assert run(*wrong) == 2
    assert Path("o.rttm").read_bytes() == before
