"""Items of object stores: lists name them by URL, their bytes are read with bounds, and what goes
wrong is said without credentials. The store is an S3 server of its own.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import likeness
from eval.errors import LikenessError, Unreachable
from likeness.missing import refuse_missing_files
from modalities.face import images
from modalities.speaker import audio
from toolkit.data import remote
from toolkit.data.images import encode
from toolkit.data.item_lists import read_items, write_items
from toolkit.data.items import Item
from toolkit.data.kaldi_folder import read_kaldi_folder
from toolkit.data.listing import list_items

URL = "s3://voices/ann/1.flac"


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
    assert read_kaldi_folder(tmp_path)[0].name == URL
    written = tmp_path / "again.txt"
    write_items(written, items, tmp_path)
    assert URL in written.read_text()
    assert [item.name for item in read_items(written)] == [item.name for item in items]


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
        with pytest.raises(ValueError, match="no such file"):
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
    ask("no credentials")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "his-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    ask("does not answer")


MEGABYTE = 2**20


def serve(connection: socket.socket, size: int | None, sent: int) -> None:
    """Answer HEAD by a size, if there is one, and GET by other bytes, without an end."""
    head = b'HTTP/1.1 200 OK\r\nLast-Modified: Mon, 23 Nov 2026 10:00:00 GMT\r\nETag: "x"\r\n'
    with connection, suppress(OSError):
        while request := connection.recv(65536):
            if size is None:
                continue
            is_get = request.startswith(b"GET")
            connection.sendall(
                head + (b"" if is_get else b"Content-Length: %d\r\n" % size) + b"\r\n"
            )
            for _ in range(sent if is_get else 0):
                connection.sendall(b"x" * MEGABYTE)


@pytest.fixture
def strange_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | None, int], None]]:
    """Make a server that states a size, or nothing, and sends so many megabytes."""
    s3fs = pytest.importorskip("s3fs")
    listener = socket.create_server(("127.0.0.1", 0))
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()

    def begin(size: int | None, sent: int) -> None:
        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(
                        target=serve, args=(connection, size, sent), daemon=True
                    ).start()

        threading.Thread(target=accept, daemon=True).start()

    yield begin
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_file_over_the_limit_is_not_read(strange_store: Any) -> None:
    strange_store(9 * 10**12, 0)
    with pytest.raises(ValueError, match="over 1000 bytes"):
        remote.read(URL, 1000)


def test_a_body_is_not_read_beyond_the_limit(strange_store: Any) -> None:
    strange_store(10, 10**6)
    with pytest.raises(ValueError, match="over 1000 bytes"):
        remote.read(URL, 1000)


def test_a_store_that_does_not_go_on_is_given_up(
    strange_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange_store(10, 0)
    remote.refuse_unreachable([URL])  # it answers that the file has ten bytes
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(Unreachable, match="did not answer in"):
        remote.read(URL, 1000)


def test_a_store_that_says_nothing_is_given_up(
    strange_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange_store(None, 0)
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.2)
    with pytest.raises(Unreachable, match="did not answer in"):
        remote.refuse_unreachable([URL])


def test_a_reason_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "his-secret")

    def fail() -> None:
        with remote.plain_errors(URL):
            raise PermissionError("key his-secret of http://ann:pass@host/x\nsecond line")

    with pytest.raises(Unreachable) as refused:
        fail()
    assert not any(word in str(refused.value) for word in ("his-secret", "ann:pass", "second"))
    assert "$AWS_SECRET_ACCESS_KEY" in str(refused.value)


def test_a_short_name_of_a_key_is_left_in_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")

    def fail() -> None:
        with remote.plain_errors(URL):
            raise PermissionError("access is denied")

    with pytest.raises(Unreachable, match=r"\(access is denied\)"):
        fail()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")

    def missing(name: str) -> None:
        raise ImportError(f"Install the package of {name}")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for url, match in ((URL, r"likeness\[s3\]"), ("gs://b/a.wav", r"\[gcs\]"), ("az://b/a", "az")):
        with pytest.raises(Unreachable, match=match):
            refuse_missing_files([Path(url)])


def test_a_url_with_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="environment") as refused:
        Item("a", Path("s3://ann:his-secret@voices/a.wav")).open()
    assert "his-secret" not in str(refused.value)


def test_a_container_before_an_at_sign_is_no_password() -> None:
    url = "abfs://voices@account.dfs.core.windows.net/ann/1.flac"
    assert remote.url_of(Path(url)) == url


def test_nobody_is_asked_where_no_url_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str) -> None:
        raise AssertionError(url)

    monkeypatch.setattr(remote, "file_system", refuse)
    with pytest.raises(LikenessError):
        refuse_missing_files([Path("s3/voices/a.wav"), Path("a.wav")])


def test_python_embeds_urls(store: Any, voices: Path, tmp_path: Path) -> None:
    import s3fs

    model = likeness.load("likeness:voice")
    wave, rate_hz = soundfile.read(sorted(voices.rglob("*.flac"))[0])
    soundfile.write(tmp_path / "a.flac", np.tile(wave, 3), rate_hz)
    s3fs.S3FileSystem().put_file(tmp_path / "a.flac", "voices/ann/1.flac")
    with pytest.raises(ValueError, match="address"):
        model.embed("https://example.org/a.wav")
    found = [model.embed(URL), model.embed([URL]), model.embed({"a": URL})]
    assert [made.ids for made in found] == [(URL,), (URL,), ("a",)]
