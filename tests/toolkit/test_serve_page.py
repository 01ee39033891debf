"""The page of `likeness serve` in headless Chromium: compare, enrol, search, remove, record; nothing is asked of the network. Skips without a browser."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from eval.calibration import Calibration
from modalities import synthetic_faces
from modalities.face import images
from toolkit import recipe
from toolkit.backbones.sfnet import SFNet
from toolkit.checkpoint import Loaded, load_model, save_model
from toolkit.embed import TorchEmbedder
from toolkit.gallery import ExactGallery
from toolkit.pixels import INSIGHTFACE

playwright = pytest.importorskip("playwright.sync_api")
uvicorn = pytest.importorskip("uvicorn")
for needed in ("fastapi", "python_multipart"):
    pytest.importorskip(needed)

TOKEN = "a-token-for-the-tests"
TIMEOUT_MS = 300_000  # for each click: a busy machine takes its time
SPEAKER = recipe.load(str(Path(__file__).parent / "tiny.py"))[0]
FACE = replace(
    SPEAKER,
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(SFNet, dim=8, depth=10, width=4, image_size=48, batch_norm=True),
    read=partial(images.read, size=(48, 48), fit="resize"),
)


def untrained(made: recipe.Recipe, path: Path) -> Loaded:
    torch.manual_seed(0)
    frontend = made.frontend()
    save_model(path, TorchEmbedder(frontend, made.backbone(frontend.dim)), made, similarity="cosine", step=0, metrics={})
    return load_model(path)


@contextmanager
def serving(model: Loaded, **rules: Any) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    from toolkit.serve import make_app
    from toolkit.serve_work import Service

    listener = socket.create_server(("127.0.0.1", 0))
    app = make_app(Service(model, ExactGallery(None, model.meta), **rules), token=TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    media = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]  # a beeping microphone
    with playwright.sync_playwright() as running:
        try:
            started = running.chromium.launch(executable_path=path, args=["--no-sandbox", *media])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start: {str(error)[:200]}")
        yield started
        started.close()


@contextmanager
def page_of(browser: Any, url: str) -> Iterator[Any]:
    """The page, opened with the token as it is printed; its errors and requests elsewhere fail the test."""
    wrong: list[str] = []
    page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
    page.set_default_timeout(TIMEOUT_MS)
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith((url, "data:", "blob:")) else wrong.append(asked.url))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"{url}#token={TOKEN}")
    page.wait_for_selector("#file-first", state="attached")
    assert page.url == url  # the token does not stay in the address
    yield page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing hangs over the edge of a phone
    assert wrong == []
    page.context.close()


def test_voices_on_the_page(browser: Any, voices: Path, tmp_path: Path) -> None:
    files = [str(path) for path in sorted(voices.rglob("*.flac"))]
    with (
        serving(untrained(SPEAKER, tmp_path / "m.safetensors"), threshold=-1.0, calibration=Calibration(8.0, -3.0, p_target=0.25)) as url,
        page_of(browser, url) as page,
    ):
        page.set_input_files("#file-first", files[0])
        page.set_input_files("#file-second", files[9])
        page.click("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "The same voice"
        said = page.inner_text("#answer")
        assert re.search(r"Probability\s+(?:> )?\d+\.\d %\s+if 25 % of pairs are", said)
        assert re.search(r"Threshold\s+-1.000\s+Quality\s+[\d.]+ / [\d.]+\s+norms", said)
        page.click("[data-drop=first] .row button")
        page.click("[data-drop=first] .acts button:first-child")  # record
        time.sleep(0.8)
        page.click("[data-drop=first] .acts button:first-child")  # stop
        page.wait_for_selector("[data-drop=first] audio")
        page.click("#compare:not([disabled])")
        page.wait_for_selector("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "The same voice"
        page.click("[data-tab=gallery]")
        for name in ("Ada <b>Lovelace</b>", "Alan"):
            page.set_input_files("#file-enrolment", files[0 if name == "Alan" else 9])
            page.fill("#subject", name)
            page.click("#enrol:not([disabled])")
            page.wait_for_selector(f"#entries td:text-is('{name}')")
        page.click("[data-tab=identify]")
        page.set_input_files("#file-probe", files[0])
        page.click("#search:not([disabled])")
        page.wait_for_selector("#answer table")
        assert page.inner_text(".verdict") == "Alan"
        page.click("[data-tab=gallery]")
        page.click("[aria-label='Remove Alan']")
        page.wait_for_selector("#entries td:text-is('Alan')", state="detached")
        assert page.inner_text("#entries td:first-child") == "Ada <b>Lovelace</b>"


def test_photos_on_the_page(browser: Any, tmp_path: Path) -> None:
    synthetic_faces.write_faces(tmp_path / "faces", num_subjects=2, num_shots=1, size=64)
    files = [str(path) for path in sorted((tmp_path / "faces").rglob("*.*"))]
    with serving(untrained(FACE, tmp_path / "m.safetensors")) as url, page_of(browser, url) as page:
        page.set_input_files("#file-first", files[0])
        page.set_input_files("#file-second", files[1])
        page.wait_for_selector("[data-drop=second] img")
        page.click("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "No decision"
        assert "start it with --threshold" in page.inner_text("#answer")


def test_a_refused_photo_is_explained(browser: Any, tmp_path: Path) -> None:
    synthetic_faces.write_faces(tmp_path / "faces", num_subjects=1, num_shots=1, size=64)
    whole = next(path for path in sorted((tmp_path / "faces").rglob("*.*")))
    broken = tmp_path / f"broken{whole.suffix}"
    broken.write_bytes(whole.read_bytes()[:200])
    with serving(untrained(FACE, tmp_path / "m.safetensors")) as url:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(url)
        page.set_input_files("#file-first", str(whole))
        page.set_input_files("#file-second", str(broken))
        page.click("#compare:not([disabled])")
        said = page.inner_text("#answer .error")
        assert "1 of 2 items cannot be read: the second file: " in said
        assert "likeness-" not in said  # the private folder in which it was
        page.context.close()


def test_a_removal_that_failed_can_be_tried_again(browser: Any, tmp_path: Path) -> None:
    synthetic_faces.write_faces(tmp_path / "faces", num_subjects=1, num_shots=1, size=64)
    with serving(untrained(FACE, tmp_path / "m.safetensors")) as url:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{url}#token={TOKEN}")
        page.click("[data-tab=gallery]")
        page.set_input_files("#file-enrolment", str(next(path for path in sorted((tmp_path / "faces").rglob("*.*")))))
        page.fill("#subject", "Ada")
        page.click("#enrol:not([disabled])")
        page.wait_for_selector("#entries td:text-is('Ada')")
        page.route("**/gallery/Ada", lambda route: route.fulfill(status=500, json={"error": "a full disk"}))
        page.click("[aria-label='Remove Ada']")
        page.wait_for_selector("#answer .error:text-is('a full disk')")
        page.unroute("**/gallery/Ada")
        page.click("[aria-label='Remove Ada']:not([disabled])")
        page.wait_for_selector("#entries td:text-is('Ada')", state="detached")
        page.context.close()
