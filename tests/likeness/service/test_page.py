"""The page of `likeness serve` in headless Chromium: compare, enrol, search, remove, record, and
choose thresholds and faces; nothing is asked of the network. Skips without a browser.
"""

import itertools
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness import Fusion, Model, Scores
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.thresholds import Thresholds, measure
from likeness.modalities import synthetic_faces
from likeness.models.run import load_model
from likeness.service._pages import read_examples, slider
from likeness.toolkit.gallery import media
from likeness.toolkit.models.loaded import Loaded
from tests import tiny
from tests.likeness.service.serving import FACE, TOKEN, face_network, httpx, photograph, serving
from tests.tiny_yunet import tiny_yunet

playwright = pytest.importorskip("playwright.sync_api")
TIMEOUT_MS = 300_000  # for each click: a busy machine takes its time


@contextmanager
def page_of(browser, model, gallery=None, **rules):
    """The page of a server, opened with the token as it is printed, and its address; its errors and
    requests elsewhere fail the test.
    """
    with serving(model, gallery, **rules) as url:
        wrong: list[str] = []
        page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (url, "data:", "blob:")
        page.on("request", lambda to: None if to.url.startswith(own) else wrong.append(to.url))
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(f"{url}#token={TOKEN}")
        page.wait_for_selector("#file-first", state="attached")
        assert page.url == url  # the token does not stay in the address
        yield page, url
        # nothing hangs over the edge of a phone
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert wrong == []
        page.context.close()


@pytest.mark.slow  # ten seconds of a browser; the next tests compare and enrol photos
def test_voices_on_the_page(browser, voices, run):
    files = [str(path) for path in sorted(voices.rglob("*.flac"))]
    model, fusion = load_model(run), Fusion((8.0,), -3.0, p_target=0.25)
    with page_of(browser, model, threshold=-1.0, calibration=fusion) as (page, _):
        page.set_input_files("#file-first", files[0])
        page.set_input_files("#file-second", files[9])
        page.click("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "The same voice"
        output = page.inner_text("#answer")
        assert re.search(r"Probability\s+(?:> )?\d+\.\d %\s+if 25 % of pairs are", output)
        assert re.search(r"Threshold\s+-1.000\s+Time", output)
        assert "Quality" not in output  # ArcFace gives the norm no meaning
        page.click("[data-drop=first] .row button")
        assert page.is_hidden("#answer")
        button = "[data-drop=first] .acts button:first-child"
        page.click(button)  # It begins to record, and then shows for how long.
        page.wait_for_selector(f"{button}:text-matches('^Stop +(0\\.[89]|[1-9])')")
        page.click(button)  # It stops.
        page.wait_for_selector("[data-drop=first] audio")
        page.click("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "The same voice"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Of faces."""
    return load_model(tiny.untrained(tmp_path_factory.mktemp("model"), FACE))


@pytest.fixture(scope="module")
def photos(module_path: Path) -> list[str]:
    synthetic_faces.write_faces(module_path, num_subjects=2, num_shots=2, size=64)
    return [str(path) for path in sorted(module_path.rglob("*.*"))]


def test_a_verdict_goes_with_the_files_that_were_compared(browser, photos, model):
    with page_of(browser, model, threshold=-1.0) as (page, _):
        page.set_input_files("#file-first", photos[0])
        page.wait_for_selector("[data-drop=first] img")
        page.set_input_files("#file-second", photos[1])
        page.click("#compare:not([disabled])")
        assert page.inner_text(".verdict") == "The same face"
        drop = """async ([place, name, type]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array([1, 2, 3])], name, { type }));
            const event = new DragEvent("drop", { dataTransfer: data });
            document.querySelector(`[data-drop=${place}]`).dispatchEvent(event);
        }"""
        page.click("[data-drop=second] .row button")  # removed
        assert page.locator(".verdict").count() == 0
        assert page.is_disabled("#compare")
        page.set_input_files("#file-second", photos[2])
        page.click("#compare:not([disabled])")
        page.wait_for_selector(".verdict")
        page.evaluate(drop, ["first", "other.png", "image/png"])  # replaced
        page.wait_for_selector("[data-drop=first]:has-text('other.png')")
        assert page.locator(".verdict").count() == 0
        # unreadable in the page: neither the verdict nor the old picture stays
        page.evaluate(drop, ["first", "text.txt", "text/plain"])
        error = page.locator("[data-drop=first] .error")
        assert error.inner_text() == "text.txt: That is no image."
        assert page.locator("[data-drop=first] img").count() == 0
        assert page.is_disabled("#compare")
        # A second file that cannot be used is named as well, and the first stays named.
        page.evaluate(drop, ["second", "more.txt", "text/plain"])
        assert page.inner_text("[data-drop=second] .error") == "more.txt: That is no image."
        assert error.inner_text() == "text.txt: That is no image."


# What a screen reader would have no name for.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, audio, [role=img]")]
  .filter((one) => one.checkVisibility() && !one.ariaLabel && !one.textContent.trim() &&
    !(one.labels && one.labels.length)).map((one) => one.outerHTML)"""


def stored(centre: float = 0.0) -> Thresholds:
    """Thresholds of pairs whose scores are spread evenly: FAR and FRR can be read off."""
    strangers = np.linspace(centre - 0.5, centre + 0.3, 2001)
    same = np.linspace(centre - 0.3, centre + 0.5, 401)
    scores = Scores(np.concatenate((same, strangers)), np.arange(2402) < 401)
    return measure(scores, Origin("cosine"), data="a demo", fars=[0.1, 0.01], subjects=12)[0]


def score_on(page: Any) -> float:
    return float(page.inner_text("dl div:first-child dd").split()[0])


def move(page: Any, place: int) -> None:
    page.evaluate(
        """(place) => {
          const slider = document.getElementById("slider");
          slider.value = place;
          slider.dispatchEvent(new Event("input"));
        }""",
        place,
    )


def test_the_slider_changes_the_verdict_without_asking_again(browser, photos, model):
    folder = Path(photos[0]).parents[1]
    examples = read_examples(folder, "face", 1_000_000)
    # The score lies where a fifth of strangers' pairs score higher, so that some thresholds are
    # too close to it and others are not.
    entry = stored(Model(model).verify(*(folder / one.name for one in examples[:2])).score - 0.15)
    rules = {"threshold": entry.at(0.1).value, "slider": slider(entry, ""), "examples": examples}
    with page_of(browser, model, **rules) as (page, _):
        page.click("#examples button >> nth=0")
        page.click("#compare:not([disabled])")
        page.wait_for_selector(".verdict")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        score = score_on(page)
        assert "10 in 100 pairs of strangers would pass" in page.inner_text("#meaning")
        assert "a demo (12 subjects, 2,001 pairs of strangers" in page.inner_text("#rule-source")
        verdicts, words = set(), set()
        for place in range(int(page.get_attribute("#slider", "max")) + 1):
            move(page, place)
            threshold = float(page.inner_text("#rule-at"))
            said = page.inner_text(".verdict")
            if abs(score - threshold) > 0.002:
                assert said == ("The same face" if score >= threshold else "Different faces")
            verdicts.add(said)
            words.add(page.inner_text(".certainty"))
            # The words of the slider are those of a screen reader, too.
            assert page.inner_text("#meaning") in page.get_attribute("#slider", "aria-valuetext")
        assert verdicts == {"The same face", "Different faces"}
        assert len(words) >= 2
        assert "Too close to call" in words
        assert page.inner_text("#meaning").startswith("At most 5 in 1,000 pairs of strangers")
        page.click("#marks button:text-is('FAR 1 %')")
        assert page.inner_text("#meaning").startswith("1 in 100 pairs of strangers would pass")
        page.focus("#slider")
        before = page.inner_text("#rule-at")
        page.keyboard.press("ArrowLeft")
        assert float(page.inner_text("#rule-at")) < float(before)
        assert asked == []


def test_a_face_is_chosen_by_keyboard_and_sent(browser, tmp_path):
    photo, empty = tmp_path / "three.png", tmp_path / "none.png"
    photo.write_bytes(photograph())
    empty.write_bytes(photograph(()))
    model = face_network(tmp_path, tiny_yunet(tmp_path / "detector.onnx"))
    with page_of(browser, model, threshold=0.5) as (page, url):
        for place in ("first", "second"):
            page.set_input_files(f"#file-{place}", str(photo))
            page.wait_for_selector(f"[data-drop={place}] .seen img")
        assert page.locator("[data-drop=first] .box").count() == 3
        assert page.evaluate(NAMELESS) == []
        size = "one => [one.offsetWidth, one.offsetHeight]"
        drawn = [page.eval_on_selector(".seen img", size)]
        page.evaluate("document.documentElement.style.fontSize = '8px'")  # less room for it
        drawn.append(page.eval_on_selector(".seen img", size))
        assert drawn == [[96, 112], [55, 64]]
        crop = page.get_attribute("[data-drop=first] .seen img", "src")
        chosen = int(page.get_attribute("[data-drop=first] input:checked", "value"))
        page.focus("[data-drop=first] input:checked")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("[data-drop=first] .seen img", "src") != crop
        page.click("#compare:not([disabled])")
        page.wait_for_selector(".verdict")
        both = {"first": photo.read_bytes(), "second": photo.read_bytes()}

        def score(first: int, second: int) -> float:
            data = {"first_face": first, "second_face": second}
            answer = httpx.post(f"{url}verify", files=both, data=data, timeout=60)
            return float(answer.json()["score"])

        expected = {pair: score(*pair) for pair in itertools.product(range(3), repeat=2)}
        assert score_on(page) == pytest.approx(expected[(chosen + 1) % 3, chosen], abs=6e-4)
        assert score_on(page) < 0.999
        # Another face is another question.
        page.focus("[data-drop=first] input:checked")
        page.keyboard.press("ArrowRight")
        assert page.is_hidden("#answer")
        page.click("[data-drop=first] .other")
        page.set_input_files("#file-first", str(empty))
        assert "none.png: No face was found" in page.inner_text("[data-drop=first] .error")
        assert page.is_disabled("#compare")


def test_the_gallery_shows_enrolments_and_is_searched(browser, photos, model, tmp_path):
    folder = tmp_path / "gallery"
    with page_of(browser, model, folder, threshold=-1.0, keeps_media=True) as (page, _):
        page.click("[data-tab=gallery]")
        for path in photos[:2]:
            page.set_input_files("#file-enrolment", path)
            page.fill("#subject", "Ada <i>")
            page.click("#enrol:not([disabled])")
            page.wait_for_selector("#answer:has-text('is enrolled')")
            page.fill("#subject", "")
        assert "2 ×" in page.inner_text("#entries")
        page.wait_for_selector("#entries .thumb")
        page.click("[aria-label='Show the enrolments of Ada <i>']")
        page.wait_for_selector(".enrolments img >> nth=1")
        pictures = "[...document.querySelectorAll('.enrolments img')]"
        assert page.evaluate(f"{pictures}.every((one) => one.naturalWidth)")
        assert re.search(r"Enrolment 2 · 20\d\d-\d\d-\d\d", page.inner_text(".enrolments"))
        page.click("[data-tab=identify]")
        page.set_input_files("#file-probe", photos[0])
        page.click("#search:not([disabled])")
        page.wait_for_selector("#answer table")
        assert page.inner_text(".verdict") == "Ada <i>"
        page.click("[data-tab=gallery]")
        page.click("[aria-label='Remove Ada <i>']")
        page.wait_for_selector("#answer:has-text('is erased')")
        assert page.evaluate("document.activeElement.id") == "enrolled"
        kept = (folder / media.FOLDER).rglob("*.jpg")
        assert list(kept) == []
