"""The page of docs/how-to/service.md in headless Chromium, with a microphone that speaks: it comes
from another origin, records by MediaRecorder and asks a server. Skips without a browser or PyAV.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from likeness import load
from likeness.modalities import synthetic
from likeness.models.bundled import VOICE
from likeness.toolkit.models.loaded import Loaded
from tests.likeness.service.serving import ROOT, TOKEN, WRITE, httpx, serving

pytest.importorskip("playwright.sync_api")
pytest.importorskip("av")
TIMEOUT_MS = 300_000  # a busy machine takes its time
HZ = 48_000


@pytest.fixture(scope="module")
def spoken(module_path: Path) -> list[Path]:
    """A recording of each of three voices."""
    synthetic.write_voices(module_path, num_speakers=3, num_utterances=1, seconds=(3.0, 3.1))
    return sorted(module_path.rglob("*.flac"))


@pytest.fixture(scope="module")
def microphone(spoken: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The second voice, again and again."""
    wave, rate_hz = soundfile.read(spoken[1])
    path = tmp_path_factory.mktemp("microphone") / "voice.wav"
    soundfile.write(path, np.repeat(wave, HZ // rate_hz), HZ, subtype="PCM_16")
    return [f"--use-file-for-fake-audio-capture={path}"]


@pytest.fixture(scope="module")
def model() -> Loaded:
    return load(VOICE).comparer().model


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def another_server(folder: Path) -> Iterator[str]:
    """The origin of a server of the files in a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def write_page(folder: Path, service: str) -> None:
    """The page of the documentation, for the address of a service."""
    text = (ROOT / "docs" / "how-to" / "service.md").read_text(encoding="utf-8")
    found = re.search(r"^```html\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    page = found[1].replace("http://127.0.0.1:8000", service.rstrip("/"))
    assert service.rstrip("/") in page
    (folder / "index.html").write_text(page.replace("seconds = 4", "seconds = 2"))


def answer_of(page: Any) -> Any:
    """The answer that the page shows next."""
    page.wait_for_selector("#answer:not(:empty)")
    answer = json.loads(page.inner_text("#answer"))
    page.evaluate("document.getElementById('answer').textContent = ''")
    return answer


@pytest.mark.parametrize("kind", ["audio/webm", pytest.param("audio/mp4", marks=pytest.mark.slow)])
def test_a_page_of_ones_own_records_and_asks(browser, model, spoken, tmp_path, kind):
    with another_server(tmp_path) as origin, serving(model, origins=[origin]) as service:
        for subject, path in zip(("ann", "bob", "eve"), spoken, strict=True):
            upload = {"files": path.read_bytes()}
            httpx.post(f"{service}enrol", data={"subject": subject}, files=upload, headers=WRITE)
        write_page(tmp_path, service)
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.add_init_script(
            "window.MediaRecorder = class extends MediaRecorder {"
            f"constructor(stream) {{ super(stream, {{ mimeType: '{kind}' }}); }}"
            "stop() { super.stop(); window.recorded = (window.recorded || 0) + 1; } }"
        )
        page.goto(origin)
        if not page.evaluate(f"MediaRecorder.isTypeSupported('{kind}')"):
            pytest.skip(f"this Chromium records no {kind}")
        page.click("#who")
        found = answer_of(page)
        assert found["matches"][0]["subject"] == "bob"
        page.click("#first")
        page.wait_for_function("window.recorded == 2")
        page.click("#second")
        assert answer_of(page)["score"] > 2 * found["matches"][1]["score"]
        page.context.close()


def test_a_page_of_another_origin_gets_no_answer(browser, model, tmp_path):
    with another_server(tmp_path) as origin, serving(model, origins=[f"{origin}0"]) as service:
        write_page(tmp_path, service)
        page = browser.new_context().new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(origin)
        asked = f"""async ([path, method, headers]) => {{
            const body = method === "POST" ? new FormData() : undefined;
            return fetch("{service}" + path, {{ method, headers, body }}).then(
                (answer) => answer.status, (error) => error.name);
        }}"""
        known = {"Authorization": f"Bearer {TOKEN}"}
        for request in (["verify", "POST", {}], ["gallery", "GET", {}], ["enrol", "POST", known]):
            assert page.evaluate(asked, request) == "TypeError"
        page.context.close()
