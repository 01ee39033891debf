"""A field of a format that is read is obeyed or refused, never ignored (map, section 3).

Every suffix that is read has its fields in `picture_files` and `recording_files`; a suffix without
them fails. The fields of lists and of embeddings stand here.
"""

import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from PIL import Image

from likeness import LikenessError, read_embeddings, read_trials
from likeness.eval.formats import embeddings as formats
from likeness.eval.items.item_lists import read_items, write_items
from likeness.eval.items.items import Item, Items
from likeness.eval.items.listing import list_items
from likeness.eval.items.suffixes import AV_SOUNDS, IMAGES, SOUNDS
from likeness.eval.reports.media import read_sound, thumbnail
from likeness.modalities.face.images import decode
from likeness.modalities.image import images
from likeness.modalities.speaker import audio, long
from likeness.modalities.speaker.decoding import BadAudio
from likeness.modalities.speaker.inspection import RECORDINGS as INSPECTED
from likeness.models.inputs import items_of
from likeness.toolkit.data.images import INSPECTION, BadImage
from tests.picture_files import PICTURES
from tests.recording_files import GLIDE, HZ, OTHER, RECORDINGS, STEREO, WAVE, wav


@pytest.fixture(autouse=True)
def _tones_and_pixels_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test signals and pictures of few pixels hold no subject, which test_nothing.py is about."""
    readers = ("face.images", "image.images", "speaker.audio", "speaker.inspection")
    for name in (*(f"modalities.{reader}" for reader in readers), "toolkit.data.reading"):
        monkeypatch.setattr(f"likeness.{name}.refuse_empty", lambda *_: None)


def cases(table: dict[str, dict[str, tuple[object, object]]]) -> list[tuple[str, str]]:
    """Each field, once for all suffixes of a format but for the first."""
    first = {id(fields): suffix for suffix, fields in reversed(table.items())}
    return [(suffix, field) for key, suffix in first.items() for field in table[suffix]]


def test_every_suffix_that_is_read_has_its_fields():
    assert set(PICTURES) == set(IMAGES)
    assert set(RECORDINGS) == {*SOUNDS, *AV_SOUNDS}
    assert set(VECTORS) == set(formats.SUFFIXES)


@pytest.mark.parametrize(("suffix", "field"), cases(PICTURES))
def test_fields_of_pictures(tmp_path, suffix, field):
    if suffix in (".heic", ".heif"):
        pytest.importorskip("pillow_heif").register_heif_opener()
    content, shown = PICTURES[suffix][field]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content())
    item = Item("a", path)
    if isinstance(shown, str):
        for read in (decode, images.read):
            with pytest.raises(BadImage, match=shown):
                read(item)
        with pytest.raises(BadImage, match=shown):
            INSPECTION.content(item, INSPECTION.header(item))
        return
    pixels = decode(item)
    assert pixels.shape == shown.shape
    assert np.abs(pixels - shown.astype(np.float64)).max() <= 2
    assert np.array_equal(images.read(item, dtype="uint8"), pixels.transpose(2, 0, 1))
    # What is handed in as an open picture is read alike, and so is what a report shows.
    opened = Image.open(io.BytesIO(path.read_bytes()))
    with opened, items_of(opened, modality="image") as handed:
        assert np.array_equal(decode(handed[0]), pixels)
    if "bits" not in field:  # levels of which are spread in a report
        report = np.asarray(Image.open(io.BytesIO(thumbnail(path))).convert("RGB"), np.float64)
        assert np.abs(report - pixels).max() <= 12 * (suffix == ".jpg") + 2


@pytest.mark.parametrize("suffix", [".gif", ".tif", ".webp", ".png"])
def test_a_file_of_several_pictures_is_named(tmp_path, suffix):
    field = "several pages" if suffix == ".tif" else "several frames"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PICTURES[suffix][field][0])
    assert "first of several" in INSPECTION.header(Item("a", path)).format


@pytest.mark.parametrize(("suffix", "field"), cases(RECORDINGS))
def test_fields_of_recordings(tmp_path, suffix, field):
    if suffix in AV_SOUNDS:
        pytest.importorskip("av")
    make, heard = RECORDINGS[suffix][field]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(make())
    whole = Item("a", path)
    shard = tmp_path / "s.tar"
    shard.write_bytes(b"front" + path.read_bytes() + b"behind")
    spanned = Item("a", shard, None, (5, path.stat().st_size), suffix)
    if isinstance(heard, str):
        for item in (whole, spanned):
            with pytest.raises(BadAudio, match=heard):
                audio.read(item)
        with pytest.raises(BadAudio):
            INSPECTED.content(whole, INSPECTED.header(whole))
        return
    wave = audio.read(whole)
    assert len(wave) == pytest.approx(len(heard), abs=200)  # the last block of an ADPCM is full
    num = min(len(wave), len(heard))
    similarity = wave[:num] @ heard[:num] / np.linalg.norm(wave[:num]) / np.linalg.norm(heard[:num])
    assert similarity > 0.98
    assert np.linalg.norm(wave[:num]) == pytest.approx(np.linalg.norm(heard[:num]), rel=0.05)
    assert np.array_equal(audio.read(spanned), wave)
    header = INSPECTED.header(whole)
    assert header.seconds == pytest.approx(len(wave) / HZ, abs=0.05)


@pytest.mark.parametrize("renamed", [".wav", ".m4a", ".webm"])
@pytest.mark.parametrize("suffix", [".wav", ".flac", ".mp3", ".opus", ".mov", ".webm", ".mkv"])
def test_a_recording_is_known_by_its_content(tmp_path, monkeypatch, suffix, renamed):
    pytest.importorskip("av")
    monkeypatch.setattr(long, "lack_of_voice", lambda *_: None)
    content = next(iter(RECORDINGS[suffix].values()))[0]()
    own, other = tmp_path / f"own{suffix}", tmp_path / f"other{renamed}"
    for path in (own, other):
        path.write_bytes(content)
    item = Item("a", other)
    wave = audio.read(Item("a", own))
    assert np.array_equal(audio.read(item), wave)
    assert INSPECTED.header(item) == INSPECTED.header(Item("a", own))
    in_chunks = np.concatenate(list(long.read(item, chunk_seconds=1)))
    assert len(in_chunks) == len(wave)
    with items_of([content, io.BytesIO(content)], modality="speaker") as handed:
        assert all(np.array_equal(audio.read(one), wave) for one in handed)
    with pytest.raises(BadAudio, match="too long"):
        audio.read(item, max_seconds=0.5)


# A call of two channels: the first is the glide, and the second silent but for its reverse.
@pytest.fixture
def call(tmp_path: Path) -> Path:
    (tmp_path / "call.wav").write_bytes(wav(STEREO + OTHER[::-1]))
    (tmp_path / "one.wav").write_bytes(wav(GLIDE))
    return tmp_path


def turns(*channels: str) -> str:
    return "".join(f"SPEAKER call {c} 0.25 0.5 <NA> <NA> ann <NA> <NA>\n" for c in channels)


def table(columns: str, *rows: str) -> dict[str, str]:
    return {"t.csv": "".join(f"{row}\n" for row in (f"path,{columns}", *rows))}


def sides(recordings: str, channels: str) -> dict[str, str]:
    return {"wav.scp": recordings, "reco2file_and_channel": channels}


PART = slice(HZ // 4, HZ * 3 // 4)
FIRST, SECOND = WAVE, WAVE[::-1]
MIXED, THREE = (FIRST + SECOND) / 2, [SECOND, FIRST, WAVE]
SPEAKER_INFO = "SPKR-INFO call 1 <NA> <NA> <NA> unknown ann <NA>\n"
# The files of a list, and what of call.wav its items are, or the words of a refusal.
LISTS: dict[str, tuple[dict[str, str], list[np.ndarray] | str]] = {
    "RTTM, channel": ({"m.rttm": turns("2", "1")}, [SECOND[PART], FIRST[PART]]),
    "RTTM, channel by letter": ({"m.rttm": turns("B", "A")}, [SECOND[PART], FIRST[PART]]),
    "RTTM, no channel": ({"m.rttm": turns("<NA>")}, [MIXED[PART]]),
    "RTTM, other lines": ({"m.rttm": SPEAKER_INFO + turns("2")}, [SECOND[PART]]),
    "RTTM, a channel that is not there": ({"m.rttm": turns("3")}, "2 channels"),
    "RTTM, channel 0 of two": ({"m.rttm": turns("0")}, "2 channels"),
    "RTTM, channel 0 of one": ({"m.rttm": turns("0").replace("call", "one")}, [WAVE[PART]]),
    "RTTM, a word": ({"m.rttm": turns("both")}, "call both"),
    "table, channel": (table("channel", "call.wav,2", "call.wav,1", "one.wav,"), THREE),
    "table, channel by side": (table("channel", "call.wav,right"), [SECOND]),
    "table, channel, start and end": (
        table("channel,start,end", "call.wav,2,0.25,0.75"),
        [SECOND[PART]],
    ),
    "table, start and duration": (table("start,duration", "one.wav,0.25,0.5"), [WAVE[PART]]),
    "table, offset and duration": (table("offset,duration", "one.wav,0.25,0.5"), [WAVE[PART]]),
    "table, a number that is no channel": (table("channel", "call.wav,-1"), "'-1'"),
    "table, a column of its own": (table("channel", "call.wav,telephone"), [MIXED]),
    "table, channel of both kinds": (
        table("channel", "call.wav,2", "one.wav,telephone"),
        "telephone",
    ),
    "Kaldi, recordings": ({"wav.scp": "r call.wav\n"}, [MIXED]),
    "Kaldi, segments": ({"wav.scp": "r call.wav\n", "segments": "u r 0.25 0.75\n"}, [MIXED[PART]]),
    "Kaldi, channel of segments": (
        {"wav.scp": "r call.wav\n", "segments": "u r 0.25 0.75 1\nv r 0.25 -1 0\n"},
        [SECOND[PART], FIRST[HZ // 4 :]],
    ),
    "Kaldi, a channel that is none": (
        {"wav.scp": "r call.wav\n", "segments": "u r 0.25 0.75 B\n"},
        "u r 0.25 0.75 B",
    ),
    "Kaldi, reco2file_and_channel": (
        sides("a call.wav\nb call.wav\n", "a call A\nb call B\n"),
        [FIRST, SECOND],
    ),
    "Kaldi, files that are channels": (sides("a one.wav\n", "a call B\n"), [WAVE]),
    "Kaldi, one side of a call": (sides("b call.wav\n", "a call A\nb call B\n"), [SECOND]),
    "Kaldi, segments of one side": (
        {**sides("b call.wav\n", "b call B\n"), "segments": "u b 0.25 0.75\n"},
        [SECOND[PART]],
    ),
    "Kaldi, the only channel": (sides("a one.wav\n", "a one.wav A\n"), [WAVE]),
    "Kaldi, a side that is not there": (sides("b one.wav\n", "b one B\n"), "1 channel"),
    "Kaldi, a side that is none": (sides("b call.wav\n", "b call both\n"), "b call both"),
    "Kaldi, a side without its file": (sides("b call.wav\n", "b B\n"), "b B"),
    "Kaldi, a pipe": ({"wav.scp": "r sox call.wav -t wav - remix 2 |\n"}, "pipe"),
    "Kaldi, an archive": ({"wav.scp": "r wavs.ark:17\n"}, "archive"),
}


@pytest.mark.parametrize("field", LISTS)
def test_fields_of_lists(call, field):
    files, heard = LISTS[field]
    for name, text in files.items():
        (call / name).write_text(text)
    if isinstance(heard, str):
        with pytest.raises(LikenessError, match=heard):
            [audio.read(item) for item in list_items(call / next(iter(files)), suffixes=SOUNDS)]
        return
    items = list_items(call / next(iter(files)), suffixes=SOUNDS)
    write_items(call / "again.tsv", items)
    assert [*read_items(call / "again.tsv")] == list(items)
    for item, wave in zip(items, heard, strict=True):
        assert np.abs(audio.read(item) - wave).max() < 1e-4
        assert np.abs(read_sound(item).wave - wave).max() < 1e-4
        assert INSPECTED.header(item).seconds == pytest.approx(len(wave) / HZ)


def test_a_table_in_memory_names_channels_beside_none(call):
    """As pandas has numbers of which some are missing."""
    table = {"path": ["call.wav", "one.wav"], "channel": [2.0, None]}
    with items_of(pyarrow.table(table).to_pandas(), modality="speaker", root=call) as items:
        assert [item.channel for item in Items.of(items)] == [2, None]


@pytest.mark.parametrize("column", ["start", "end", "channel", "side"])
def test_trials_name_no_parts(tmp_path, column):
    path = tmp_path / "t.csv"
    for values, fits in ((("1", "2"), False), (("1", "1"), True)):
        rows = "".join(f"a,b{i},1,{value}\n" for i, value in enumerate(values))
        path.write_text(f"enrol,probe,label,{column}\n{rows}")
        if fits:
            assert len(read_trials(path).enrol) == 2
        else:
            with pytest.raises(LikenessError, match=column):
                read_trials(path)


def kaldi(head: bytes, numbers: np.ndarray) -> bytes:
    return b"a \0B" + head + numbers.tobytes()


ONE, TWO = np.array([1.5, -2.0]), struct.pack("<bi", 4, 2)
ROW = struct.pack("<bi", 4, 1) + TWO
META = {"similarity": "dot"}
# For each suffix of embeddings its fields, and the vector of `a`, or the words of a refusal.
VECTORS: dict[str, dict[str, tuple[bytes, np.ndarray | str]]] = {
    ".ark": {
        "floats": (kaldi(b"FV " + TWO, ONE.astype("<f4")), ONE),
        "doubles": (kaldi(b"DV " + TWO, ONE), ONE),
        "a matrix of one row": (kaldi(b"FM " + ROW, ONE.astype("<f4")), ONE),
        "compressed": (kaldi(b"CM " + ROW, ONE), "refused"),
        "text": (b"a  [ 1.5 -2 ]\n", "refused"),
    },
    ".scp": {
        "an offset": (b"a e.ark:2\n", ONE),
        "a range": (b"a e.ark:2[0:1]\n", "OFFSET"),
        "a pipe": (b"a cat e.ark |\n", "OFFSET"),
    },
    # tests/eval/formats/test_embeddings_elsewhere.py
    **{suffix: {} for suffix in (".npz", ".npy", ".parquet", ".csv", ".tsv")},
}


@pytest.mark.parametrize(("suffix", "field"), [(s, f) for s in VECTORS for f in VECTORS[s]])
def test_fields_of_embeddings(tmp_path, monkeypatch, suffix, field):
    monkeypatch.chdir(tmp_path)
    content, vector = VECTORS[suffix][field]
    Path("e.ark").write_bytes(kaldi(b"FV " + TWO, ONE.astype("<f4")))
    path = Path(f"e{suffix}")
    path.write_bytes(content)
    if isinstance(vector, str):
        with pytest.raises(LikenessError, match=vector):
            read_embeddings(path)
    else:
        assert np.array_equal(read_embeddings(path).matrix, [vector])


@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8"])
def test_kinds_of_numbers_and_meta_of_npz(tmp_path, kind):
    path = tmp_path / "e.npz"
    np.savez(path, ids=np.array(["a"]), matrix=ONE[None].astype(kind), meta=json.dumps(META))
    read = read_embeddings(path)
    assert np.array_equal(read.matrix, [ONE])
    assert dict(read.meta) == META


@pytest.mark.parametrize("kind", [pyarrow.float16(), pyarrow.float32(), pyarrow.float64()])
@pytest.mark.parametrize("size", [-1, 2])
def test_kinds_of_numbers_and_meta_of_parquet(tmp_path, kind, size):
    import pyarrow.parquet

    vectors = pyarrow.array([ONE.astype(kind.to_pandas_dtype())], pyarrow.list_(kind, size))
    table = pyarrow.table({"id": ["a"], "vector": vectors})
    stated = table.replace_schema_metadata({"likeness": json.dumps(META)})
    pyarrow.parquet.write_table(stated, tmp_path / "e.parquet")
    read = read_embeddings(tmp_path / "e.parquet")
    assert np.array_equal(read.matrix, [ONE])
    assert dict(read.meta) == META


def test_a_picture_that_is_handed_in_stays_as_it_was():
    with Image.open(io.BytesIO(PICTURES[".png"]["orientation"][0])) as opened:
        size = opened.size
        with items_of(opened, modality="image") as handed:
            assert decode(handed[0]).shape[:2] == size
        assert opened.size == size
