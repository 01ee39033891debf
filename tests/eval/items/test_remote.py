"""Items of object stores: lists name them by URL, their bytes are read with bounds, and what goes
wrong is said without credentials. The store is an S3 server of its own.
"""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import likeness
from likeness.checking.check import Checked
from likeness.checking.report import write_items_csv
from likeness.eval.errors import Unreachable
from likeness.eval.items import remote
from likeness.eval.items.item_lists import read_items, write_items
from likeness.eval.items.items import Item
from likeness.eval.items.listing import list_items
from likeness.eval.items.remote import refuse_missing_files
from likeness.modalities.face import images
from likeness.modalities.speaker import audio
from likeness.toolkit.data.images import encode

URL = "s3://voices/ann/1.flac"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names a store, as a user's does."""
    monkeypatch.setenv("AWS_PROFILE", "voices")


@pytest.mark.usefixtures("named")
def test_lists_name_urls_beside_files(tmp_path: Path) -> None:
    lists = {
        "paths.txt": f"{URL}\nb.flac\n",
        "ids.txt": f"a {URL}\nb b.flac\n",
        "table.csv": f"file,speaker\n{URL},ann\nb.flac,bob\n",
    }
    for name, text in lists.items():
        path = tmp_path / name
        path.write_text(text)
        items = list_items(path, suffixes=[".flac"], missing="leave")
        assert [item.name for item in items] == [URL, str(tmp_path / "b.flac")], name
        assert items[0].suffix == ".flac"
        assert items[0].id in (URL, "a")
    (tmp_path / "wav.scp").write_text(f"a {URL}\nb b.flac\n")
    kaldi = list_items(tmp_path / "wav.scp", suffixes=[".flac"], missing="leave")
    assert kaldi[0].name == URL
    written = tmp_path / "again.txt"
    write_items(written, items, tmp_path)
    assert URL in written.read_text()
    write_items_csv(tmp_path / "again.csv", Checked("x", "speaker", items))
    for path in (written, tmp_path / "again.csv"):
        assert [item.name for item in read_items(path)] == [item.name for item in items]


def test_a_root_may_be_a_url(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("ann/1.flac\n/local/b.flac\n")
    items = read_items(tmp_path / "list.txt", Path("s3://voices"))
    assert [item.name for item in items] == [URL, "/local/b.flac"]


def test_audio_and_images_are_read_as_from_a_disk(store: Any, voices: Path, tmp_path: Path) -> None:
    import s3fs

    recording = sorted(voices.rglob("*.flac"))[0]
    picture = tmp_path / "a.png"
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    picture.write_bytes(encode(pixels))
    for path, name in ((recording, "ann/1.flac"), (picture, "a.png")):
        s3fs.S3FileSystem().pipe_file(f"voices/{name}", path.read_bytes())
    there, here = Item("a", Path(URL)), Item("a", recording)
    assert np.array_equal(audio.read(there), audio.read(here))
    part = (0.1, 0.5)
    cut = audio.read(there._replace(stretch=part), min_seconds=0.1)
    assert np.array_equal(cut, audio.read(here._replace(stretch=part), min_seconds=0.1))
    face = images.read(Item("a", Path("s3://voices/a.png")), size=(32, 32))
    assert np.array_equal(face, images.read(Item("a", picture), size=(32, 32)))
    with pytest.raises(ValueError, match="over 10 bytes"):
        remote.read(URL, 10)


def test_a_missing_file_is_an_unreadable_item(store: Any) -> None:
    for name in ("gone.flac", "gone.png"):
        item = Item("gone", Path(f"s3://voices/{name}"))
        with pytest.raises(ValueError, match=r"[Nn]o such file"):
            (audio.read if name == "gone.flac" else images.read)(item)


def test_a_store_that_refuses_ends_the_work(
    store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise all further items would be left out as unreadable."""
    import s3fs

    def ask(match: str) -> None:
        s3fs.S3FileSystem.clear_instance_cache()
        for work in (
            lambda: refuse_missing_files([Path("s3://voices/a.wav")]),
            lambda: audio.read(Item("a", Path(URL))),
        ):
            with pytest.raises(Unreachable, match=match) as refused:
                work()
            assert "his-secret" not in str(refused.value)

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    ask("credentials")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "his-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ask("cannot be reached")


def test_a_list_leads_to_no_store_that_the_user_has_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection is made, and nothing looks for credentials."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "FSSPEC_", "GOOGLE_"))]:
        monkeypatch.delenv(name)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(remote, "asked", refuse)
    monkeypatch.setattr(remote, "_named", set())
    texts = {"list.txt": URL, "table.csv": f"file\n{URL}", "wav.scp": f"a {URL}"}
    for name, text in texts.items():
        (tmp_path / name).write_text(f"{text}\n")

        def read(root: str, name: str = name) -> str:
            path = tmp_path / name
            items = list_items(path, suffixes=[".flac"], missing="leave", root=Path(root))
            return items[0].name

        for root in (str(tmp_path), "s3://another", "gs://voices"):
            with pytest.raises(ValueError, match="--root s3://voices"):
                read(root)
        assert read("s3://voices/somewhere") == URL
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "FSSPEC_S3_ANON"):
            monkeypatch.setenv(variable, "true")
            assert read(str(tmp_path)) == URL
            monkeypatch.delenv(variable)
            remote._named.clear()
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")  # which names no credentials
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "key.json")  # of another store
        with pytest.raises(ValueError, match="--root s3://voices"):
            read(str(tmp_path))


def test_a_reason_shows_no_password() -> None:
    def fail() -> None:
        with remote.asked(URL):
            raise PermissionError("proxy http://ann:pass@host/x\nsecond line")

    with pytest.raises(Unreachable) as refused:
        fail()
    assert not any(word in str(refused.value) for word in ("ann:pass", "second"))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install adlfs")

    monkeypatch.setattr(fsspec, "url_to_fs", missing)
    for url in (URL, "gs://b/a.wav", "az://b/a"):
        with pytest.raises(Unreachable, match="Install adlfs"):
            refuse_missing_files([Path(url)])


def test_a_url_with_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="environment") as refused:
        Item("a", Path("s3://ann:his-secret@voices/a.wav")).open()
    assert "his-secret" not in str(refused.value)


def test_python_embeds_urls(store: Any, voices: Path, tmp_path: Path) -> None:
    import s3fs

    model = likeness.load("likeness:voice")
    wave, rate_hz = soundfile.read(sorted(voices.rglob("*.flac"))[0])
    soundfile.write(tmp_path / "a.flac", np.tile(wave, 3), rate_hz)
    s3fs.S3FileSystem().put_file(tmp_path / "a.flac", "voices/ann/1.flac")
    with pytest.raises(ValueError, match=r"[Nn]o such file"):
        model.embed("https://example.org/a.wav")
    found = [model.embed(URL), model.embed([URL]), model.embed({"a": URL})]
    assert [made.ids for made in found] == [(URL,), (URL,), ("a",)]
