"""What the routes of `likeness serve` answer, asked without a server."""

import asyncio
import io
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from starlette.middleware.exceptions import ExceptionMiddleware

from likeness import Embeddings, Fusion, LikenessError, Model, Scoring, open_gallery
from likeness.eval.scoring.threshold_files import Rule
from likeness.models._places import estimate
from likeness.models.run import load_model
from likeness.service.server import Setup, _application
from likeness.toolkit.models.loaded import Loaded
from tests.likeness.service.serving import TOKEN, asking, face_network, photograph, service_of
from tests.recording_files import HZ, through_av
from tests.tiny_yunet import tiny_yunet


@pytest.fixture(scope="module")
def model(run: Path) -> Loaded:
    return load_model(run)


@pytest.fixture(scope="module")
def paths(voices: Path) -> list[Path]:
    return sorted(voices.rglob("*.flac"))


@pytest.fixture(scope="module")
def files(paths: list[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def uploads(*files: bytes) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", ("secret.wav", file)) for file in files]


def test_verify_says_what_the_command_says(model, paths, files):
    calibration = Fusion((8.0,), -3.0, p_target=0.2)
    expected = Model(model, calibration).verify(paths[0], paths[9])
    ask = asking(service_of(model, calibration=calibration))
    got = ask("POST", "/verify", files={"first": files[0], "second": files[9]})
    assert got.status_code == 200
    answer = got.json()
    assert answer["score"] == pytest.approx(expected.score, abs=1e-6)
    assert answer["norms"] == pytest.approx(expected.norms, rel=1e-5)
    assert answer["probability"] == pytest.approx(expected.probability, abs=1e-5)
    assert (answer["accepted"], answer["prior"]) == (expected.accepted, 0.2)
    assert (answer["similarity"], answer["modality"]) == ("cosine", "speaker")
    assert ask("GET", "/health").json()["calibrated"] is True


def test_two_people_are_compared_by_both_kinds(model, files, tmp_path):
    face = face_network(tmp_path, tiny_yunet(tmp_path / "yunet.onnx"))
    photos = [photograph(), photograph(((3, 4), (12, 8)))]
    systems = tuple(Scoring().system(of.meta) for of in (face, model))
    fusion = Fusion((1.5, 6.0), -2.0, systems, p_target=0.2)
    ask = asking(service_of(model, beside=(service_of(face), fusion)))
    mixed = [("first", photos[0]), ("first", files[0]), ("second", files[9]), ("second", photos[1])]
    got = ask("POST", "/verify", files=mixed, data={"second_face": 1}).json()
    of_each = (face, mixed[::3], {"second_face": 1}), (model, mixed[1:3], {})
    alone = [
        asking(service_of(of))("POST", "/verify", files=dict(sides), data=data).json()
        for of, sides, data in of_each
    ]
    assert [*got["parts"]] == ["face", "speaker"]
    assert [part["score"] for part in got["parts"].values()] == [one["score"] for one in alone]
    assert [part["norms"] for part in got["parts"].values()] == [one["norms"] for one in alone]
    assert got["score"] == pytest.approx(1.5 * alone[0]["score"] + 6 * alone[1]["score"] - 2)
    assert (got["prior"], got["similarity"], got["model"]) == (0.2, "fusion", model.digest)
    assert got["accepted"] is (got["probability"] >= 0.5)
    single = ask("POST", "/verify", files={"first": files[0], "second": files[9]}).json()
    assert single == {**alone[1], "parts": None}
    for wrong, says in (
        (mixed[:3], "of one there is a recording"),
        ([mixed[1], mixed[1], *mixed[2:]], "a recording and a recording"),
        ([*mixed[:3], ("second", b"no picture")], "cannot be read"),
        ([*mixed, mixed[0]], "first"),
    ):
        answer = ask("POST", "/verify", files=wrong)
        assert answer.status_code == 422
        assert says in answer.json()["error"]
    answer = asking(service_of(model))("POST", "/verify", files=mixed)
    assert answer.status_code == 422
    assert "--fusion" in answer.json()["error"]
    with pytest.raises(LikenessError, match="fitted for scores of"):
        service_of(model, beside=(service_of(face), Fusion((1.0, 1.0), 0.0, ("a", "b"))))


def test_a_gallery_is_managed_and_searched(model, files, tmp_path):
    gallery = open_gallery(str(tmp_path / "people"), model.meta)
    ask = asking(service_of(model, gallery))
    strange = "O'Neil / 日本"

    def enrol(subject: str, *some: bytes) -> Any:
        return ask("POST", "/enrol", data={"subject": subject}, files=uploads(*some))

    def identify(**data: object) -> Any:
        return ask("POST", "/identify", files={"file": files[4]}, data=data).json()

    assert ask("GET", "/gallery").json() == {"subjects": 0, "entries": []}
    for subject, some in (("Ann", files[:2]), (strange, files[4:5])):
        got = enrol(subject, *some)
        assert (got.status_code, got.json()["added"]) == (201, len(some))
    entries = ask("GET", "/gallery").json()["entries"]
    assert [entry["enrolments"] for entry in entries] == [2, 1]
    assert len(ask("GET", "/gallery?offset=1&limit=5").json()["entries"]) == 1
    found = identify(k=2, threshold=0.99)
    best = found["matches"][0]
    assert (found["identified"], best["subject"], best["accepted"]) == (strange, strange, True)
    assert best["score"] == pytest.approx(1, abs=1e-6)
    assert identify(threshold=1.01)["identified"] is None
    assert (identify()["decided"], identify()["identified"]) == (False, None)
    assert len(ask("GET", "/gallery/O'Neil %2F 日本").json()["enrolments"]) == 1
    bad = enrol("Eve", files[0], b"RIFF????WAVEfmt ")
    assert bad.status_code == 422  # all or none
    assert "1 of 2 files cannot be read: the second file: " in bad.json()["error"]
    assert ask("DELETE", "/gallery/Eve").status_code == 404
    assert ask("DELETE", "/gallery/Ann").json() == {"subject": "Ann", "subjects": 1}
    for subject, number in ((" a\n", 1), ("b", 11)):
        assert enrol(subject, *[files[0]] * number).status_code == 422
    gallery.close()


def test_a_gallery_of_a_place_is_served_without_its_mean(run, model, files, tmp_path):
    from starlette.testclient import TestClient

    rows = np.random.default_rng(0).normal(1, 1, (60, model.embedder.dim))
    items = Embeddings(tuple(map(str, range(60))), rows, model.meta)
    stored = estimate(model, items, [0.05], data="lobby")
    people = str(tmp_path / "people")
    open_gallery(people, model.meta, thresholds=stored).close()
    setup = Setup(model=str(run), gallery=people, rule=Rule(far=0.05), token=TOKEN)
    app, lines = _application(setup)
    assert any("mean of lobby" in line for line in lines)
    known = {"Authorization": f"Bearer {TOKEN}"}
    with TestClient(app, "http://localhost", headers=known) as client:
        client.post("/enrol", data={"subject": "Ann"}, files=uploads(files[0]))
        found = client.post("/identify", files={"file": files[4]}).json()
        verified = client.post("/verify", files={"first": files[0], "second": files[4]}).json()
    assert found["threshold"] == verified["threshold"] == stored.points[0].value
    assert found["matches"][0]["score"] == pytest.approx(verified["score"], abs=1e-5)


def test_without_a_gallery_nobody_is_searched(model, files):
    ask = asking(service_of(model))
    assert ask("GET", "/gallery").status_code == 404
    assert ask("POST", "/identify", files={"file": files[0]}).status_code == 404


def test_malformed_uploads_are_the_callers_fault(model, files):
    rng = np.random.default_rng(0)
    sound = io.BytesIO()
    soundfile.write(sound, 0.1 * rng.standard_normal(8_000), 16_000, format="WAV")
    kinds = [b"", b"\0", bytes(5000), b"RIFF\xff\xff\xff\xffWAVE" + bytes(99), b"%!PS-Adobe\n"]
    kinds += [b"....ftypM4A " + bytes(200), b"\x80\x04cos\nsystem\n(S'true'\ntR.", b"no sound"]
    for whole in (files[0], sound.getvalue()) * 6:
        kinds.append(whole[: rng.integers(1, len(whole))] + rng.bytes(6))
    ask = asking(service_of(model))
    answers = [ask("POST", "/verify", files={"first": kind, "second": files[0]}) for kind in kinds]
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) <= {200, 422}
    assert statuses[:8] == [422] * 8
    assert "1 of 2 files cannot be read: the first file: " in answers[7].json()["error"]
    assert not any("/proc/" in answer.text for answer in answers)
    form, plain = ({"content-type": f"multipart/form-data{m}"} for m in ("; boundary=x", ""))
    requests = [{"json": {}}, {"data": {"first": "text"}}, {"files": {"first": files[0]}}]
    requests += [{"content": b"--x", "headers": form}, {"content": bytes(500), "headers": plain}]
    for request in requests:
        answer = ask("POST", "/verify", **request)
        assert 400 <= answer.status_code < 500
        assert answer.json()["error"]


def test_recordings_are_bounded_by_their_headers(model, monkeypatch):
    from likeness.service import _inputs

    rng = np.random.default_rng(0)
    long, wide = io.BytesIO(), io.BytesIO()
    soundfile.write(long, np.zeros(61 * 8_000, np.int16), 8_000, format="FLAC")
    soundfile.write(wide, rng.normal(0, 0.1, (2_000, 8)), 16_000, format="FLAC")
    both = {"first": long.getvalue(), "second": wide.getvalue()}
    refused = asking(service_of(model))("POST", "/verify", files=both)
    assert (refused.status_code, "at most 60 s" in refused.json()["error"]) == (422, True)
    twice = dict.fromkeys(("first", "second"), wide.getvalue())
    for most, status in ((16_000, 200), (15_999, 422)):
        monkeypatch.setattr(_inputs, "MAX_VALUES", most)
        ask = asking(service_of(model))
        assert ask("POST", "/verify", files=twice).status_code == status


@pytest.mark.parametrize(
    ("suffix", "codec"),
    [(".webm", "libopus"), (".mkv", "libopus"), (".mov", "aac"), (".m4a", "aac")],
)
def test_what_browsers_and_phones_record_is_read(model, paths, files, monkeypatch, suffix, codec):
    pytest.importorskip("av")
    wave, rate_hz = soundfile.read(paths[0])
    assert rate_hz == HZ
    upload = through_av(suffix, codec, samples=wave)
    both = {"first": ("voice.wav", upload), "second": files[0]}
    answer = asking(service_of(model))("POST", "/verify", files=both)
    assert answer.status_code == 200
    assert answer.json()["score"] == pytest.approx(1, abs=0.01)
    monkeypatch.setattr("likeness.service._inputs.MAX_SECONDS", 0.3)
    for size, says in ((None, "too long"), (len(upload) // 4, "the first file")):
        both["first"] = ("voice.wav", upload[:size])
        answer = asking(service_of(model))("POST", "/verify", files=both)
        assert answer.status_code == 422
        assert says in answer.json()["error"]


def test_many_files_are_answered_in_their_order_and_a_bad_one_alone_fails(model, files):
    from likeness.service._work import MAX_EMBEDDED

    sent = files[:20]
    sent[3] = b"no sound"
    ask = asking(service_of(model))
    got = ask("POST", "/embed", files=uploads(*sent))
    assert (got.status_code, got.headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in got.text.splitlines()]
    assert [line["file"] for line in lines] == list(range(20))
    assert "cannot be read: the file: " in lines[3]["error"]
    for number in {*range(20)} - {3}:
        alone = json.loads(ask("POST", "/embed", files=uploads(sent[number])).text)
        assert lines[number]["embedding"] == pytest.approx(alone["embedding"], rel=1e-5)
    assert ask("POST", "/embed", files=uploads(*[b"x"] * (MAX_EMBEDDED + 1))).status_code == 422


def test_large_uploads_stay_in_memory(model, monkeypatch):
    from starlette.formparsers import MultiPartParser

    def on_disk(_: object) -> None:
        raise AssertionError("an upload went to the disk")

    # Starlette's own, whatever other tests made
    monkeypatch.setattr(MultiPartParser, "spool_max_size", 1 << 20)
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", on_disk)
    ask = asking(service_of(model))
    got = ask("POST", "/verify", files={"first": bytes(4 << 20), "second": bytes(1_500_000)})
    assert got.status_code == 422  # zeros are no recording


class Failing:
    """A gallery whose database fails whatever it is asked."""

    folder, similarity = None, "cosine"

    def __init__(self, error: Exception):
        self.error = error

    def __len__(self) -> int:
        with pytest.raises(RuntimeError):  # no other answer waits for it
            asyncio.get_running_loop()
        raise self.error

    search = entries = enrolments = remove = lambda self, *_: len(self)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(28, "No space left on device", "people/Quentin"), 500),
        (RuntimeError("error: IO, where subject IN ('Quentin')"), 500),
        (ConnectionError("postgresql://ann@db/faces: the database does not answer"), 503),
    ],
)
def test_a_gallery_that_fails_is_not_the_fault_of_a_recording(model, files, error, status, caplog):
    ask = asking(service_of(model, Failing(error)))
    for method, path, more in (
        ("DELETE", "/gallery/Quentin", {}),
        ("POST", "/identify", {"files": {"file": files[0]}}),
    ):
        got = ask(method, path, **more)
        assert got.status_code == status
        assert not re.search("postgresql|people/", got.json()["error"])
    assert "Quentin" not in caplog.text


def test_pages_ask_nothing_of_the_network_and_name_every_route(model):
    ask = asking(service_of(model))
    paths = ask("GET", "/openapi.json").json()["paths"]
    assert {"/verify", "/identify", "/enrol", "/embed", "/gallery/{subject}"} <= paths.keys()
    assert all(path in ask("GET", "/docs").text for path in paths)
    for path in ("/", "/docs"):
        got = ask("GET", path)
        assert not re.search(r"""(?:src|href|url)\s*[=(]\s*["']?(?:https?:)?//""", got.text)
        policy = got.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert got.headers["x-content-type-options"] == "nosniff"
        assert got.headers["x-frame-options"] == "DENY"


def ask(requests=1, *, method="POST", path="/verify", chunks=(b"x",), local=True, **headers):
    """Statuses of requests at once to a Guard before an application that reads the body and lets
    all others come before it answers.
    """
    from likeness.service._guard import Guard

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        for _ in range(5 * requests):
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    asked = ExceptionMiddleware(application)
    guard = Guard(asked, token=TOKEN, hosts=["proxy.example"], local=local, threads=1)
    sent = {"host": "localhost", **headers}.items()
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in sent]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    statuses: list[int] = []

    async def one() -> None:
        left = list(chunks)

        async def receive() -> Any:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await guard(dict(scope), receive, send)

    async def everyone() -> None:
        await asyncio.gather(*(one() for _ in range(requests)))

    asyncio.run(everyone())
    return sorted(statuses)


SERVED = ("localhost:99", "LOCALHOST", "127.0.0.1:80", "[::1]:99", "Proxy.Example:443")
REFUSED = ("evil.example", "127.0.0.1.evil.example:80", "192.168.1.1", "[::1", "user@localhost", "")


def test_only_the_names_that_are_served_are_answered():
    for method in ("GET", "POST"):
        for host in (*SERVED, *REFUSED):
            assert ask(method=method, host=host) == [421 if host in REFUSED else 200]


@pytest.mark.parametrize(
    ("name", "values", "status"),
    [
        ("origin", ("http://localhost", "https://LOCALHOST"), 200),
        ("origin", ("http://localhost:81", "http://localhost.evil.example", "null", ""), 403),
        ("sec_fetch_site", ("same-origin",), 200),
        ("sec_fetch_site", ("cross-site", "same-site"), 403),
    ],
)
def test_uploads_come_from_the_page_itself(name, values, status):
    for value in values:
        assert ask(**{name: value}) == [status]  # type: ignore[arg-type]
        assert ask(method="GET", **{name: value}) == [200]  # a link may lead to the page


APP = "https://app.example"
OTHERS = ("https://other.example", "http://app.example", f"{APP}:8443", f"{APP}.evil.example")


@pytest.mark.parametrize(
    ("origin", "origins", "is_allowed"),
    [
        (APP, (APP,), True),
        (APP, ("http://localhost:3000", APP), True),
        (APP, (), False),
        *((origin, (APP,), False) for origin in (*OTHERS, "null")),
    ],
)
def test_pages_elsewhere_ask_where_their_origin_is_allowed(
    model, files, tmp_path, origin, origins, is_allowed
):
    gallery = open_gallery(str(tmp_path / "people"), model.meta)
    service = service_of(model, gallery)
    ask = asking(service, token="", origins=origins)
    sent = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    asked = {"Access-Control-Request-Headers": "authorization", **sent}
    readable = origin if is_allowed else None

    def preflight(ask: Any, method: str) -> Any:
        headers = {"Access-Control-Request-Method": method, **asked}
        return ask("OPTIONS", "/enrol", headers=headers)

    def of(answer: Any) -> tuple[int, str | None]:
        return answer.status_code, answer.headers.get("access-control-allow-origin")

    both = {"first": files[0], "second": files[9]}
    status = 200 if is_allowed else 403
    assert of(ask("POST", "/verify", files=both, headers=sent)) == (status, readable)
    assert of(ask("GET", "/health", headers=sent)) == (200, readable)
    for local in (True, False):
        got = preflight(asking(service, token="", origins=origins, local=local), "POST")
        assert (got.is_success, of(got)[1]) == (is_allowed, readable)
    if not is_allowed:
        return
    assert preflight(ask, "PUT").status_code == 400
    enrolled = {"data": {"subject": "Ann"}, "files": uploads(files[0])}
    assert of(ask("POST", "/enrol", **enrolled, headers=sent)) == (401, readable)
    known = {**sent, "Authorization": f"Bearer {TOKEN}"}
    assert of(ask("POST", "/enrol", **enrolled, headers=known)) == (201, readable)
    assert of(ask("POST", "/verify", headers={**sent, "Host": "evil.example"})) == (421, readable)
    elsewhere = asking(service, token="", origins=origins, local=False)
    assert of(elsewhere("POST", "/verify", files=both, headers=sent)) == (401, readable)


def test_who_changes_the_gallery_needs_the_token():
    accepted = (f"Bearer {TOKEN}", f"bearer {TOKEN}")
    for method, path in (("POST", "/enrol"), ("DELETE", "/gallery/a")):
        for value in (*accepted, f"Basic {TOKEN}", "Bearer wrong", "Bearer \xe9", ""):
            expected = [200 if value in accepted else 401]
            assert ask(method=method, path=path, authorization=value) == expected


def test_other_machines_need_the_token_for_everything():
    open_to_all = (("/health", "", 200), ("/", "", 200))
    of_all = (("/gallery", "", 401), ("/identify", "", 401), ("/verify", TOKEN, 200))
    for path, token, status in (*open_to_all, *of_all):
        sent = {"host": "10.0.0.7:8000", "authorization": f"Bearer {token}"}
        assert ask(path=path, local=False, **sent) == [status]


def test_bodies_are_bounded_in_size_and_number(monkeypatch):
    from likeness.service import _guard as guard

    for name, value in (("MAX_BYTES", 100), ("MAX_HELD", 200), ("MAX_WAITING", 4)):
        monkeypatch.setattr(guard, name, value)
    assert ask(content_length="101") == [413]
    assert ask(chunks=(b"x" * 60, b"x" * 60)) == [413]  # of no stated length
    assert ask(chunks=(b"x" * 60, b"x" * 40)) == [200]
    assert ask(9) == [200] * 5 + [503] * 4
    assert ask(9, method="GET") == [200] * 9
    assert ask(5, chunks=(b"x" * 50,)) == [200] * 4 + [503]


def test_the_log_names_no_method_of_the_client_s_own(caplog):
    with caplog.at_level("INFO", logger="likeness.serve"):
        ask(method="EVIL" * 1_000, path="/health")
    assert "EVIL" not in caplog.text
    assert caplog.messages[0].startswith("- ")
