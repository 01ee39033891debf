"""`likeness prepare` against a server of our own: whole and verified, or nothing under a final
name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.cli import main
from likeness.prepare.archives import _Joined, unpack
from likeness.prepare.fetch import differs, download
from likeness.prepare.prepare import prepare
from likeness.prepare.sources import DATASETS, named
from tests.disk_calls import come_in_order, recorded
from tests.likeness.prepare.serving import Server, packed, serving, zipped
from toolkit.data.source import Archive, Dataset, Holds


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as first:
        yield first


WAVS = {f"set-1.0/recordings/{i}.wav": os.urandom(2_000) for i in range(5)}


def dataset(server: Server, body: bytes, name: str = "set.tar.gz", **more: object) -> Dataset:
    server.files[name] = body
    archive = Archive(
        makes="set/wav", urls=(server.url(name),), takes=("*/recordings/*.wav",), **more
    )  # type: ignore[arg-type]
    return Dataset(
        "set", "a set", "none", "here", (archive,), holds=(Holds("set/wav", (".wav",), 5),)
    )


def run(one: Dataset, data: Path, **more: object) -> list[str]:
    message: list[str] = []
    prepare(one, data, say=message.append, wait_seconds=0.01, **more)  # type: ignore[arg-type]
    return message


def left(data: Path) -> list[str]:
    """Every file below data but the lock."""
    return sorted(
        path.relative_to(data).as_posix()
        for path in data.rglob("*")
        if path.is_file() and path.name != ".lock"
    )


def test_fetches_verifies_unpacks_counts_and_does_it_once(server: Server, tmp_path: Path) -> None:
    body = packed({**WAVS, "set-1.0/README": b"read"})
    first = dataset(server, body, sha256=hashlib.sha256(body).hexdigest(), size=len(body))
    message = run(first, tmp_path)
    assert left(tmp_path) == [f"set/wav/{i}.wav" for i in range(5)]
    assert (tmp_path / "set/wav/3.wav").read_bytes() == WAVS["set-1.0/recordings/3.wav"]
    assert "set.tar.gz: SHA-256 is right" in message
    assert message[-1] == "ok       files in set/wav: 5 of 5"
    assert "set/wav is there already; unpacked files are counted, not summed" in run(
        first, tmp_path
    )
    assert len(server.requests) == 1


def test_an_archive_goes_when_what_it_held_is_on_the_disk(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataset(server, packed(WAVS))
    server.files["list.txt"] = b"a b"
    listed = Archive(makes="meta/list.txt", urls=(server.url("list.txt"),))
    calls = recorded(monkeypatch, tmp_path)
    run(replace(first, archives=(*first.archives, listed)), tmp_path)
    for name, made in (
        ("set.tar.gz", ["sync", "replace set/wav", "fsync set"]),
        ("list.txt", ["replace meta/list.txt", "fsync meta"]),
    ):
        fetched = [f"fsync downloads/{name}.part", f"replace downloads/{name}", "fsync downloads"]
        assert come_in_order([*fetched, *made, f"unlink downloads/{name}"], calls)
    assert come_in_order(
        ["fsync downloads/.unpacking-list.txt/file", "replace meta/list.txt"], calls
    )


@pytest.mark.parametrize("folder", ["", "downloads"])
def test_files_that_are_there_already_are_summed(
    server: Server, tmp_path: Path, folder: str
) -> None:
    body = packed(WAVS)
    first = dataset(server, body, md5=hashlib.md5(body).hexdigest())
    run(first, tmp_path)
    beside = tmp_path / folder / "set.tar.gz"
    beside.write_bytes(body)
    assert (
        "set/wav is there already; MD5 of set.tar.gz is right; unpacked files are counted, not "
        "summed" in run(first, tmp_path)
    )
    beside.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(
        ValueError,
        match=r"md5",
    ):
        run(first, tmp_path)
    # what somebody put there is removed by nobody else
    assert (tmp_path / "set/wav/3.wav").is_file()
    whole = Dataset(
        "list",
        "a list",
        "none",
        "here",
        (
            Archive(
                makes="meta/list.txt",
                urls=(server.url("list.txt"),),
                md5=hashlib.md5(b"a b").hexdigest(),
            ),
        ),
    )
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/list.txt").write_bytes(b"a b")
    assert "meta/list.txt is there already; MD5 is right" in run(whole, tmp_path)
    (tmp_path / "meta/list.txt").write_bytes(b"a c")
    with pytest.raises(
        ValueError,
        match=r"^list.txt: its md5 .* remove it",
    ):
        run(whole, tmp_path)


def test_broken_connections_are_resumed_where_they_broke(server: Server, tmp_path: Path) -> None:
    server.files["a"] = os.urandom(3_000_000)
    server.breaks = 3
    server.busy = 2
    download(server.url("a"), tmp_path / "a", wait_seconds=0.01)
    assert (tmp_path / "a").read_bytes() == server.files["a"]
    starts = [int(request[6:-1]) for _, request in server.requests if request]
    assert starts == [1_500_000, 2_250_000, 2_625_000]
    assert left(tmp_path) == ["a"]


def test_a_stopped_download_resumes_and_a_changed_file_starts_again(
    server: Server, tmp_path: Path
) -> None:
    server.files["a"] = os.urandom(100_000)
    server.breaks = 1_000
    server.ranges = False  # every try begins anew and gains nothing
    with pytest.raises(
        OSError,
        match="50000 of 100000 bytes",
    ):
        download(server.url("a"), tmp_path / "a", wait_seconds=0.001)
    assert left(tmp_path) == ["a.part", "a.part.tag"]
    server.breaks, server.ranges, server.requests = 0, True, []
    server.files["a"] = os.urandom(100_001)  # If-Range: another file now
    download(server.url("a"), tmp_path / "a", wait_seconds=0.01)
    assert (tmp_path / "a").read_bytes() == server.files["a"]
    assert server.requests == [("/a", "bytes=50000-")]


def test_without_etag_only_a_verified_file_is_resumed(server: Server, tmp_path: Path) -> None:
    server.files["a"] = os.urandom(100_000)
    server.tags = False
    for verified in (False, True):
        (tmp_path / "a.part").write_bytes(server.files["a"][:60_000])
        server.requests = []
        download(server.url("a"), tmp_path / "a", verified=verified)
        assert (tmp_path / "a").read_bytes() == server.files["a"]
        assert server.requests == [("/a", "bytes=60000-" if verified else None)]
    (tmp_path / "a.part").write_bytes(server.files["a"])  # complete, only not renamed: 416
    download(server.url("a"), tmp_path / "a", verified=True)
    # longer than the server's: not the same file
    (tmp_path / "a.part").write_bytes(server.files["a"] * 2)
    download(server.url("a"), tmp_path / "a", verified=True, wait_seconds=0.01)
    assert (tmp_path / "a").read_bytes() == server.files["a"]


def test_wrong_checksum_or_size_leaves_nothing(server: Server, tmp_path: Path) -> None:
    body = packed(WAVS)
    for more, message in (
        (
            {"sha256": "0" * 64},
            r"set.tar.gz: its sha256 is [0-9a-f]{64}, but 0{64} is expected; it was removed",
        ),
        ({"md5": "0" * 32}, r"its md5 is [0-9a-f]{32}, but 0{32} is expected"),
        ({"size": 17}, r"the server's file has \d+ bytes, but 17 are expected"),
    ):
        with pytest.raises(ValueError, match=message):
            run(dataset(server, body, **more), tmp_path)
        assert left(tmp_path) == []


def test_files_that_somebody_put_there_are_removed_by_nobody_else(
    server: Server, tmp_path: Path
) -> None:
    first = dataset(server, packed(WAVS), md5="0" * 32)
    put = tmp_path / "downloads" / "set.tar.gz"
    put.parent.mkdir()
    put.write_bytes(b"mine")
    with pytest.raises(
        ValueError,
        match=r"^set.tar.gz: its md5 .* remove it: run",
    ):
        run(first, tmp_path)
    assert put.read_bytes() == b"mine"
    assert server.requests == []
    server.files["b"] = b"second part"
    parts = Archive(makes="both", urls=(server.url("set.tar.gz"), server.url("b")), md5="0" * 32)
    with pytest.raises(
        ValueError,
        match=r"'b' of it.*remove 'set.tar.gz' from",
    ):
        run(Dataset("both", "two parts", "none", "here", (parts,), by_hand="ask"), tmp_path)
    assert left(tmp_path) == ["downloads/set.tar.gz"]
    assert put.read_bytes() == b"mine"


def test_an_unknown_checksum_is_reported(server: Server, tmp_path: Path) -> None:
    body = packed(WAVS)
    assert f"set.tar.gz: UNVERIFIED, no checksum of it is known; {len(body)} bytes" in run(
        dataset(server, body), tmp_path, keep=True
    )
    assert "downloads/set.tar.gz" in left(tmp_path)


@pytest.mark.parametrize("cut", [0.05, 0.5, 0.98])
def test_truncated_archives(server: Server, tmp_path: Path, cut: float) -> None:
    for name, body in (("set.tar.gz", packed(WAVS)), ("set.zip", zipped(WAVS))):
        with pytest.raises(
            ValueError, match=rf"{name}: damaged or cut short .*nothing of it was unpacked"
        ):
            run(dataset(server, body[: int(len(body) * cut)], name), tmp_path)
        assert left(tmp_path) == [f"downloads/{name}"]
        (tmp_path / "downloads" / name).unlink()


def test_members_outside_the_folder_are_refused(server: Server, tmp_path: Path) -> None:
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w:gz") as tar:
        info = tarfile.TarInfo("set-1.0/recordings/0.wav")
        info.type, info.linkname = tarfile.SYMTYPE, "../../../../../etc/passwd"
        tar.addfile(info)
    device = io.BytesIO()
    with tarfile.open(fileobj=device, mode="w:gz") as tar:
        info = tarfile.TarInfo("x")
        info.type = tarfile.CHRTYPE
        tar.addfile(info)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo("set-1.0/recordings/0.wav")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    cases = {
        "a.tar.gz": packed({**WAVS, "../../evil.wav": b"x"}),
        "b.tar.gz": link.getvalue(),
        "c.tar.gz": device.getvalue(),
        "d.zip": zipped({**WAVS, "../evil.wav": b"x"}),
        "e.zip": zipped({"/evil.wav": b"x"}),
        "f.zip": buffer.getvalue(),
    }
    for name, body in cases.items():
        with pytest.raises(
            ValueError,
            match=rf"{name}: .*nothing of it was unpacked; it is not the archive that was "
            r"published",
        ):
            run(dataset(server, body, name), tmp_path / "data")
    assert left(tmp_path) == [f"data/downloads/{name}" for name in cases]


def nameless_zip() -> bytes:
    """Its only member has no name."""
    contents = zipped({"a": b"x"})
    start = contents.index(b"PK\1\2")
    end = contents.index(b"PK\5\6")
    member, listed = contents[:start], contents[start:end]
    member = member[:26] + bytes(2) + member[28:30] + member[31:]
    listed = listed[:28] + bytes(2) + listed[30:46] + listed[47:]
    return (
        member
        + listed
        + contents[end : end + 12]
        + struct.pack("<IIH", len(listed), len(member), 0)
    )


def bzipped() -> bytes:
    """A member in bzip2 with a changed byte: bz2 raises OSError."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a", b"x" * 100)
    return buffer.getvalue().replace(b"BZh9", b"BZh0")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a.zip", nameless_zip()),
        ("b.zip", bzipped()),
        ("c.tar.gz", packed({".": b"x"})),
        ("d.tar.gz", packed({"a": b"x", "a/b": b"x"})),
        ("e.zip", zipped({"a/b": b"x", "a": b"x"})),
    ],
)
def test_members_without_a_place_are_refused(name: str, body: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(body)
    with pytest.raises(ValueError, match=rf"{name}: .*nothing of it was unpacked"):
        unpack(name, [tmp_path / name], tmp_path / "into")
    assert left(tmp_path) == [name]


def test_expanding_archives_are_refused(tmp_path: Path) -> None:
    zeros = tmp_path / "zeros.tar.gz"
    info = tarfile.TarInfo("zeros")
    info.size = 2**29
    zeros.write_bytes(gzip.compress(info.tobuf() + bytes(1_000)))
    with pytest.raises(ValueError, match="over 1 members or 268435456"):
        unpack(zeros.name, [zeros], tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full"
)
def test_a_full_disk_is_an_error_and_leaves_no_final_file(server: Server, tmp_path: Path) -> None:
    server.files["a"] = b"x" * 100
    (tmp_path / "a.part").symlink_to("/dev/full")
    with pytest.raises(
        OSError,
        match=r"a\.part: .*No space left.*make room",
    ):
        download(server.url("a"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    server.claim = 10**18
    with pytest.raises(OSError, match=r"1000000000\.00 GB .* GB are free"):
        download(server.url("a"), tmp_path / "b")


def test_addresses_that_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not an http or https address"):
        download("file:///etc/passwd", tmp_path / "a")
    with pytest.raises(OSError, match=r"answers 404 .*the file may have moved"):
        download(server.url("absent"), tmp_path / "a")
    with pytest.raises(ValueError, match=r"not http or https .*ftp"):
        download(server.url("moved"), tmp_path / "a", wait_seconds=0.001)
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match=r"no connection .*gave up after 5 tries"):
        download(server.url("a"), tmp_path / "a", wait_seconds=0.001)


def test_parts_are_joined_and_archives_put_there_by_hand_are_taken(
    server: Server, tmp_path: Path
) -> None:
    body = packed(WAVS)
    pieces = {
        f"set.tar.gza{part}": body[i * 3_000 : (i + 1) * 3_000] for i, part in enumerate("abcd")
    }
    server.files.update(pieces)
    sum_ = hashlib.md5(body).hexdigest()
    holds = (Holds("set/wav", (".wav",), 5),)
    fetched = Archive(
        "set/wav", urls=tuple(map(server.url, pieces)), takes=("*/recordings/*",), md5=sum_
    )
    run(Dataset("set", "", "", "", (fetched,), holds=holds), tmp_path / "1")
    assert len(left(tmp_path / "1")) == 5
    wavs = zipped(WAVS)
    for where, names in (("", ["set.zipaa", "set.zipab"]), ("downloads", ["set.zip"])):
        data = tmp_path / (where or "2")
        (data / where).mkdir(parents=True)
        by_hand = Archive(
            "set/wav",
            files=("set.zipaa", "set.zipab"),
            joined="set.zip",
            takes=("*/recordings/*",),
            md5=hashlib.md5(wavs).hexdigest(),
        )
        loaded = Dataset(
            "set", "", "", "", (by_hand,), holds=holds, by_hand="fetch set.zip into DATA/downloads"
        )
        with pytest.raises(ValueError, match=r"1 of 1 counts .*fetch set.zip into"):
            run(loaded, data)
        for i, name in enumerate(names):
            (data / where / name).write_bytes(
                wavs[i * 4_000 : (i + 1) * 4_000]
                if len(names) == 2 and i == 0
                else wavs[4_000 * i :]
            )
        run(loaded, data)
        assert len(left(data)) == 5 + len(names)  # the user's files stay


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    start=st.integers(0, 60),
    length=st.integers(0, 60),
)
def test_joined_reads_like_one_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], start: int, length: int
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    whole = bytes(range(sum(sizes)))
    paths, begin = [], 0
    for i, size in enumerate(sizes):
        paths.append(folder / str(i))
        paths[-1].write_bytes(whole[begin : begin + size])
        begin += size
    with io.BufferedReader(_Joined(paths), 7) as stream:
        stream.seek(start)
        assert stream.read(length) == whole[start : start + length]
        assert stream.seek(0, io.SEEK_END) == len(whole)
    assert (
        differs(paths, sha256=hashlib.sha256(whole).hexdigest(), md5=hashlib.md5(whole).hexdigest())
        == ""
    )


def test_the_table_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({dataset.name for dataset in DATASETS}) == len(DATASETS)
    for entry in DATASETS:
        assert entry.licence
        assert entry.page.startswith("http")
        assert entry.holds or entry.check
        for archive in entry.archives:
            assert archive.names
            assert entry.by_hand or archive.urls
            assert all(url.startswith("http") for url in archive.urls)
            assert len(archive.sha256) in (0, 64)
            assert len(archive.md5) in (0, 32)
            assert not archive.makes.startswith("/")
    with pytest.raises(ValueError, match=r"'muasn' .*did you mean 'musan'"):
        named("muasn")
    main_ok(["prepare"])
    assert "voxceleb1 by hand" in " ".join(capsys.readouterr().out.split())


def main_ok(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0


def test_voxceleb_is_explained_and_counted_without_the_internet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything that a download would make is there, though empty of audio: nothing is fetched,
    and the words say what to do.
    """
    video = tmp_path / "vox2" / "dev" / "aac" / "id00012" / "21Uxsk56VDQ"
    video.mkdir(parents=True)
    (video / "00001.m4a").touch()
    (tmp_path / "vox2" / "meta").mkdir()
    (tmp_path / "vox2" / "meta" / "vox2_meta.csv").write_text(
        "VoxCeleb2 ID ,VGGFace2 ID ,Gender ,Set\nid00012 ,n000012 ,m ,dev\n", encoding="utf-8"
    )
    with pytest.raises(SystemExit) as stopped:
        main(["prepare", "voxceleb2", "--data", str(tmp_path)])
    assert stopped.value.code == 2
    shown = capsys.readouterr()
    assert "DIFFERS  audio files of voxceleb2 dev: 1 of 1,092,009" in shown.out
    assert "MISSING  speakers of voxceleb2 test: 0 of 118" in shown.out
    assert "ask for access at" in shown.err
    assert f"vox2_test_aac.zip into {tmp_path}/downloads" in shown.err
    assert len(shown.err.strip().splitlines()) == 1


def test_speakers_of_no_split_are_reported_and_their_metadata_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged VoxCeleb2 is split by vox2_meta.csv alone: without it nothing can be counted, and
    that is said; with it everything is.
    """

    def unreachable(url: str, *_: object, **__: object) -> None:
        raise OSError(f"{url}: no network")

    def fetched(url: str, path: Path, **_: object) -> None:
        assert url == "https://www.robots.ox.ac.uk/~vgg/data/voxceleb/meta/vox2_meta.csv"
        path.write_text(
            "VoxCeleb2 ID ,VGGFace2 ID ,Gender ,Set\nid00012 ,n000012 ,m ,dev\nid00017 ,n000017 ,f "
            ",test\n",
            encoding="utf-8",
        )

    for speaker in ("id00012", "id00017"):
        (tmp_path / "vox2" / speaker / "v").mkdir(parents=True)
        (tmp_path / "vox2" / speaker / "v" / "1.m4a").touch()
    monkeypatch.setattr("likeness.prepare.prepare.download", unreachable)
    with pytest.raises(
        ValueError,
        match=r"^voxceleb2: .*\('id00012', 'id00017'\);",
    ):
        run(named("voxceleb2"), tmp_path)
    monkeypatch.setattr("likeness.prepare.prepare.download", fetched)
    message: list[str] = []
    with pytest.raises(ValueError, match="4 of 4 counts"):
        prepare(named("voxceleb2"), tmp_path, say=message.append)
    assert "DIFFERS  audio files of voxceleb2 dev: 1 of 1,092,009" in message
    assert "DIFFERS  speakers of voxceleb2 test: 1 of 118" in message


def archive(path: Path, *members: tuple[str, dict[str, object]]) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, fields in members:
            info = tarfile.TarInfo(name)
            info.size = 1
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(b"x"))
    return path


@pytest.mark.parametrize(
    "members",
    [
        [("a", {"mtime": 1e300})],
        [("a", {"pax_headers": {"mtime": "inf"}})],
        [("a", {"pax_headers": {"mtime": "nan"}})],
        [("a", {"pax_headers": {"GNU.sparse.map": "0,x,1", "GNU.sparse.size": "5"}})],
        [("a", {}), ("a/b", {})],
        [("a/b", {}), ("a", {})],
        [(".", {})],
    ],
)
def test_odd_numbers_and_names_in_an_archive_are_one_sentence(
    members: list[tuple[str, dict[str, object]]], tmp_path: Path
) -> None:
    file = archive(tmp_path / "odd.tar", *members)
    with pytest.raises(ValueError, match=r"odd\.tar") as caught:
        unpack("odd.tar", [file], tmp_path / "out")
    assert "room" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_damaged_bzip2_member_is_one_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("a", bytes(1000))
    contents = bytearray((tmp_path / "a.zip").read_bytes())
    contents[35:45] = b"\xff" * 10
    (tmp_path / "a.zip").write_bytes(contents)
    with pytest.raises(ValueError, match=r"a\.zip.*fetch it again"):
        unpack("a.zip", [tmp_path / "a.zip"], tmp_path / "out")
