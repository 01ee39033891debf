"""Images and sound of reports: read within bounds, written anew, bounded in all, found only where
they may be.
"""

import base64
import io
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.reports.media import SIDE, Media, drawing, flac, media_of, read_sound, thumbnail
from tests.recording_files import HZ, through_av

RNG = np.random.default_rng(0)


def picture(path: Path, size: tuple[int, int] = (300, 200), mode: str = "RGB", **more) -> Path:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    Image.fromarray(RNG.integers(0, 255, shape, dtype=np.uint8)).convert(mode).save(path, **more)
    return path


def seen(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def test_thumbnails_are_small_upright_and_without_metadata(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a secret place"  # turned by 90 degrees; a description
    more = {"exif": exif.tobytes(), "comment": b"another secret", "icc_profile": b"x" * 200}
    contents = thumbnail(picture(tmp_path / "a.jpg", **more))
    image = seen(contents)
    assert (image.format, image.size) == ("JPEG", (171, SIDE))
    assert b"secret" not in contents
    assert not image.getexif()
    assert "icc_profile" not in image.info
    tiny = thumbnail(picture(tmp_path / "b.png", (28, 28), "L"))
    assert (seen(tiny).format, seen(tiny).size) == ("PNG", (28, 28))


def test_bombs_false_headers_and_damaged_images_are_refused_before_decoding(tmp_path):
    header = b"IHDR" + struct.pack(">2I5B", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n"
    for chunk in (header, b"IDAT" + zlib.compress(bytes(100_000)), b"IEND"):
        bomb += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "bomb.png").write_bytes(bomb)
    (tmp_path / "script.jpg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    whole = picture(tmp_path / "whole.jpg", (600, 600)).read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 3])
    (tmp_path / "empty.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("bomb.png", "script.jpg", "cut.jpg", "empty.png", "pipe.png"):
        with pytest.raises(ValueError, match=name):
            thumbnail(tmp_path / name)


@pytest.mark.parametrize(
    ("rate", "seconds", "channels"),
    [(8_000, 0.4, 1), (16_000, 12.0, 2), (44_100, 0.5, 1), (96_001, 0.2, 3)],
)
def test_clips_are_mono_16_bit_and_10_seconds_at_most(tmp_path, rate, seconds, channels):
    time = np.arange(int(rate * seconds)) / rate
    tone = np.stack([0.5 * np.sin(2 * np.pi * 440 * time)] * channels, axis=1)
    soundfile.write(tmp_path / "a.wav", tone, rate, subtype="FLOAT")
    contents = flac(read_sound(tmp_path / "a.wav"))
    wave, hz = soundfile.read(io.BytesIO(contents), always_2d=True)
    assert soundfile.info(io.BytesIO(contents)).subtype == "PCM_16"
    assert (hz, wave.shape[1]) == (min(rate, 16_000), 1)
    assert len(wave) / hz == pytest.approx(min(seconds, 10.0), rel=2e-3)
    spectrum = np.abs(np.fft.rfft(wave[:, 0]))
    assert spectrum.argmax() * hz / len(wave) == pytest.approx(440, abs=1.5 / min(seconds, 10))
    assert np.abs(wave).max() == pytest.approx(0.5, abs=0.03)


def test_a_recording_is_drawn_where_it_sounds(tmp_path):
    """A tone of 2 kHz in the second half of a second: the waveform and one band are dark there."""
    wave = np.sin(2 * np.pi * 2000 * np.arange(8000) / 8000) * (np.arange(8000) >= 4000)
    soundfile.write(tmp_path / "a.wav", wave, 8000)
    heard = read_sound(tmp_path / "a.wav")
    assert heard.seconds == 1
    dark = 255 - np.array(seen(drawing(heard))).astype(float)
    left, right = dark[:, : dark.shape[1] // 2 - 10], dark[:, dark.shape[1] // 2 + 10 :]
    waveform, bands = slice(0, 48), slice(48, 144)
    assert right[waveform].mean() > 10 * left[waveform].mean()
    assert right[bands].mean() > left[bands].mean()
    # 2 of 4 kHz is the middle of the spectrogram, whose top is the highest frequency
    assert abs(int(right[bands].mean(axis=1).argmax()) - 48) <= 2
    for samples in (np.zeros(3), np.full(5, 0.1)):
        soundfile.write(tmp_path / "short.wav", samples, 8000)
        assert seen(drawing(read_sound(tmp_path / "short.wav"))).size == (480, 144)


def test_bad_recordings_are_refused_and_nan_is_silence(tmp_path):
    values = np.array([0.1, np.nan, np.inf, 0.2])
    soundfile.write(tmp_path / "nan.wav", values, 8000, subtype="FLOAT")
    assert read_sound(tmp_path / "nan.wav").wave == pytest.approx([0.1, 0, 1, 0.2], abs=1e-4)
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 8000)
    (tmp_path / "text.flac").write_text("not sound")
    for name in ("none.wav", "text.flac", "gone.wav"):
        with pytest.raises(LikenessError, match=name):
            read_sound(tmp_path / name)


def test_ids_are_found_below_the_folder_and_nowhere_else(tmp_path):
    root = tmp_path / "root"
    (root / "s1").mkdir(parents=True)
    picture(root / "s1" / "a.png")
    picture(tmp_path / "outside.png")
    (root / "s1" / "notes.txt").write_text("private")
    media = media_of(root)
    assert "<img" in media.show("s1/a.png")
    assert "<img" in media.show("s1/a")
    picture(root / "s1" / "a#2.png")
    for photograph in ("s1/a.jpg", "s1/a.JPEG#2"):  # shown as the crop of its face
        assert "<img" in media.show(photograph)
    # What is shown again takes its bytes once.
    assert media.show("s1/a") == '<div class="shown image" data-again="s1/a"></div>'
    outside = ("../outside.png", str(tmp_path / "outside.png"), "s1/../../outside.png")
    for value in (*outside, "s1/notes.txt", "s1", "", "a\0b", "x" * 5000):
        assert media.show(value) == ""
    # a name that no file can have
    assert media.note().startswith("1 files could not be shown ('xxx")
    without = media_of(root)
    assert without.show("s1/b.jpg") == without.show("s1/c.jpg") == ""
    assert without.note() == f"{root} has no file of 's1/b.jpg', 's1/c.jpg'."


def test_names_are_escaped_and_the_budget_holds(tmp_path):
    name = '"><script>alert(1)</script>'
    noise = RNG.integers(0, 255, (120, 120, 3), dtype=np.uint8)
    first = Media(lambda id: noise).show(name)
    assert "<script" not in first
    assert "&#34;&gt;&lt;script" in first
    data = re.search('base64,([^"]*)', first)[1]
    base64.b64decode(data, validate=True)
    size = len(data)
    media = Media(lambda id: noise, max_bytes=3 * size)
    assert [bool(media.show(str(i))) for i in range(6)] == [True] * 3 + [False] * 3
    assert media.note().startswith("3 more were left out")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    soundfile.write(folder / "a.flac", 0.1 * RNG.standard_normal(800), 8000)
    soundfile.write(folder / "a.wav", 0.1 * RNG.standard_normal((300, 2)), 8000)
    for suffix in (".jpg", ".png", ".webp", ".pgm", ".bmp"):
        picture(folder / f"a{suffix}", (40, 30), "L" if suffix == ".pgm" else "RGB")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_shown_or_counted_and_nothing_else(whole, tmp_path, data):
    name = data.draw(st.sampled_from(sorted(whole)))
    contents = bytearray(whole[name])
    for _ in range(data.draw(st.integers(0, 6))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / name).write_bytes(contents[: data.draw(st.integers(0, len(contents)))])
    media = media_of(tmp_path)
    shown = media.show(name)
    assert "<img" in shown or name in media.note()


def decoded(shown: str) -> np.ndarray:
    """The sound that a block plays."""
    data = re.search(r"data:audio/flac;base64,([^\"]+)", shown)
    assert data
    return soundfile.read(io.BytesIO(base64.b64decode(data[1])))[0]


def test_of_a_stretch_only_the_stretch_is_heard(tmp_path):
    """The recording counts its own samples, so that each says where it lies."""
    rate = 8000
    ramp = np.arange(20 * rate) / (20 * rate)
    soundfile.write(tmp_path / "a.wav", ramp, rate, subtype="PCM_24")
    whole = Item("a", tmp_path / "a.wav")
    part = read_sound(whole._replace(stretch=(12.5, 14.0)))
    np.testing.assert_allclose(part.wave, ramp[int(12.5 * rate) : 14 * rate], atol=1e-6)
    assert part.seconds == pytest.approx(1.5)
    to_end = read_sound(whole._replace(stretch=(19.0, np.inf)))
    np.testing.assert_allclose(to_end.wave, ramp[19 * rate :], atol=1e-6)
    long = read_sound(whole._replace(stretch=(5.0, 18.0)))
    assert (len(long.wave), long.seconds) == (10 * rate, pytest.approx(13.0))
    beyond = read_sound(whole._replace(stretch=(19.0, 1e308)))
    np.testing.assert_array_equal(beyond.wave, to_end.wave)
    for start, end in ((21.0, 22.0), (3.0, 3.0), (4.0, 2.0), (1e308, np.inf)):
        with pytest.raises(ValueError, match="0 samples"):
            read_sound(whole._replace(stretch=(start, end)))


@pytest.mark.parametrize(
    ("suffix", "codec", "name"),
    [(".m4a", "aac", "a.m4a"), (".webm", "libopus", "a.wav"), (".aac", "aac", "a.aac")],
)
def test_what_pyav_reads_is_heard_as_well(suffix, codec, name, tmp_path):
    """Each second of the recording is another tone."""
    pytest.importorskip("av")
    time = np.arange(14 * HZ) / HZ
    tones = 0.3 * np.sin(2 * np.pi * (200 + 100 * np.floor(time)) * time)
    (tmp_path / name).write_bytes(through_av(suffix, codec, samples=tones))
    item = Item("a", tmp_path / name)
    assert read_sound(item).wave.size == pytest.approx(10 * HZ, rel=0.01)
    assert read_sound(item).seconds == pytest.approx(14, rel=0.03)  # ADTS states none
    for second in (0, 3, 12):
        part = read_sound(item._replace(stretch=(second + 0.25, second + 0.75)))
        loudest = np.argmax(np.abs(np.fft.rfft(part.wave))) * HZ / part.wave.size
        assert loudest == pytest.approx(200 + 100 * second, abs=4)
        assert part.seconds == pytest.approx(0.5, abs=0.01)
    with pytest.raises(ValueError, match="0 samples"):
        read_sound(item._replace(stretch=(21.0, 22.0)))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:300])
    assert media_of(tmp_path).show(name) == ""


def test_of_a_film_whose_times_stand_still_a_bounded_part_is_heard(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w", format="matroska") as container:
        stream = container.add_stream("flac", rate=HZ, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), "<i2"), format="s16", layout="mono")
        frame.sample_rate = HZ
        for place in range(200):
            frame.pts = place * 4096
            for packet in stream.encode(frame):
                packet.pts = packet.dts = 0  # times stand still
                container.mux(packet)
    assert read_sound(path).wave.size == 10 * HZ


def test_a_table_with_times_shows_its_stretches(tmp_path):
    rate = 8000
    ramp = np.arange(4 * rate) / (4 * rate)
    soundfile.write(tmp_path / "a.wav", ramp, rate, subtype="PCM_16")
    (tmp_path / "items.csv").write_text("id,path,start,end\none,a.wav,1,2.5\nall,a.wav,,\n")
    media = media_of(tmp_path / "items.csv")
    wave = decoded(media.show("one"))
    np.testing.assert_allclose(wave, ramp[rate : int(2.5 * rate)], atol=1e-4)
    assert decoded(media.show("all")).size == ramp.size
    assert media.show("other") == ""
