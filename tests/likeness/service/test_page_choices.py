"""What can be chosen on the page of `likeness serve`: a threshold, a face, an example; in headless
Chromium, with the keyboard, in light and dark.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.scoring.origin import Origin
from eval.thresholds import Thresholds, measure
from eval.types import Scores
from likeness.model import Model
from likeness.models.load import load_to_embed
from likeness.service.pages import read_examples
from modalities import synthetic_faces
from tests.likeness.service.serving import FACE, SPEAKER, TOKEN, httpx, serving, untrained
from tests.likeness.service.test_page import TIMEOUT_MS, page_of
from tests.tiny_yunet import network, tiny_yunet
from toolkit.data.images import encode

# The contrast of every text that is shown with what is behind it, where it is below 4.5.
LOW_CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((x) =>
      x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const low = [];
  for (const element of document.querySelectorAll("main *")) {
    const speaks = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!speaks || !element.checkVisibility() || element.disabled) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    if ((Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5) low.push(element.outerHTML);
  }
  return low;
}"""
# What a screen reader would have no name for.
NAMELESS = """() => [...document.querySelectorAll("button, input, select, audio, [role=img]")]
  .filter((one) => one.checkVisibility() && !one.ariaLabel && !one.textContent.trim() &&
    !(one.labels && one.labels.length)).map((one) => one.outerHTML)"""


def extras(**more: Any) -> Any:
    from likeness.service.work import Extras

    return Extras(**more)


def stored(centre: float = 0.0) -> Thresholds:
    """Thresholds of pairs whose scores are spread evenly: FAR and FRR can be read off."""
    strangers = np.linspace(centre - 0.5, centre + 0.3, 2001)
    same = np.linspace(centre - 0.3, centre + 0.5, 401)
    scores = Scores(np.concatenate((same, strangers)), np.arange(2402) < 401)
    return measure(scores, Origin("cosine"), data="a demo", fars=[0.1, 0.01], subjects=12)[0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faces")
    synthetic_faces.write_faces(folder, num_subjects=2, num_shots=2, size=64)
    return folder


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


def test_the_slider_changes_the_verdict_without_asking_again(
    browser: Any, photos: Path, tmp_path: Path
) -> None:
    model = untrained(FACE, tmp_path / "m.safetensors")
    examples, _ = read_examples(photos, "face", 1_000_000)
    # The score lies where a fifth of strangers' pairs score higher, so that some thresholds are
    # too close to it and others are not.
    entry = stored(Model(model).verify(*(photos / one.name for one in examples[:2])).score - 0.15)
    with (
        serving(
            model,
            threshold=entry.at(0.1).value,
            extras=extras(thresholds=entry, examples=examples),
        ) as url,
        page_of(browser, url) as page,
    ):
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


def test_without_thresholds_the_page_says_how_to_get_a_slider(browser: Any, tmp_path: Path) -> None:
    reason = "no threshold is stored"
    model = untrained(FACE, tmp_path / "m.safetensors")
    with (
        serving(model, extras=extras(no_thresholds=reason)) as url,
        page_of(browser, url) as page,
    ):
        assert page.is_hidden("#rule")
        assert reason in page.inner_text("#rule-none")
        assert "--examples" in page.inner_text("#examples")
        assert "48 x 48 pixels" in page.inner_text("#takes")


def test_a_face_is_chosen_by_keyboard_and_sent(browser: Any, tmp_path: Path) -> None:
    pixels = np.zeros((96, 128, 3), dtype=np.uint8)
    blue = np.random.default_rng(0).integers(0, 255, (6, 8), dtype=np.uint8)
    pixels[..., 2] = np.kron(blue, np.ones((16, 16), np.uint8))
    for i, (x, y) in enumerate(((3, 4), (8, 5), (12, 8))):
        pixels[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] = (255, 20 * i, 40 * i)
    photo, empty = tmp_path / "three.png", tmp_path / "none.png"
    photo.write_bytes(encode(pixels))
    empty.write_bytes(encode(np.zeros_like(pixels)))
    own = network(tmp_path / "own.onnx", (112, 96))
    model = load_to_embed(
        f"insightface:{own}@size=112x96,mean=127.5,std=128",
        detector=tiny_yunet(tmp_path / "detector.onnx"),
    )
    with serving(model, threshold=0.5) as url, page_of(browser, url) as page:
        for place in ("first", "second"):
            page.set_input_files(f"#file-{place}", str(photo))
            page.wait_for_selector(f"[data-drop={place}] .seen img")
        assert page.locator("[data-drop=first] .box").count() == 3
        assert page.evaluate(NAMELESS) == []
        crop = page.get_attribute("[data-drop=first] .seen img", "src")
        chosen = int(page.get_attribute("[data-drop=first] input:checked", "value"))
        page.focus("[data-drop=first] input:checked")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("[data-drop=first] .seen img", "src") != crop
        page.click("#compare:not([disabled])")
        page.wait_for_selector(".verdict")
        both = {"first": photo.read_bytes(), "second": photo.read_bytes()}
        expected = {
            (first, second): httpx.post(
                f"{url}verify",
                files=both,
                data={"first_face": first, "second_face": second},
                timeout=60,
            ).json()["score"]
            for first in range(3)
            for second in range(3)
        }
        assert score_on(page) == pytest.approx(expected[(chosen + 1) % 3, chosen], abs=6e-4)
        assert score_on(page) < 0.999
        # Another face is another question.
        page.focus("[data-drop=first] input:checked")
        page.keyboard.press("ArrowRight")
        assert page.is_hidden("#answer")
        page.click("[data-drop=first] .other")
        page.set_input_files("#file-first", str(empty))
        assert "No face was found" in page.inner_text("#answer .error")
        assert page.is_disabled("#compare")


def test_a_photograph_is_refused_before_it_is_sent_to_a_model_of_crops(
    browser: Any, photos: Path, tmp_path: Path
) -> None:
    own = network(tmp_path / "own.onnx", (112, 96))
    model = load_to_embed(f"insightface:{own}@size=112x96,mean=127.5,std=128")
    with serving(model) as url, page_of(browser, url) as page:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.method))
        page.set_input_files("#file-first", str(next(photos.rglob("*.png"))))
        assert "64 × 64 pixels" in page.inner_text("#answer .error")
        assert "112 × 96" in page.inner_text("#answer .error")
        assert page.locator("[data-drop=first] img").count() == 0
        assert "POST" not in sent


def test_two_recordings_share_one_axis_of_time_and_one_scale(browser: Any, tmp_path: Path) -> None:
    import soundfile

    times = np.arange(32_000) / 16_000
    loud, soft = tmp_path / "loud.wav", tmp_path / "soft.wav"
    soundfile.write(loud, 0.8 * np.sin(900 * times), 16_000)
    soundfile.write(soft, 0.2 * np.sin(900 * times[:16_000]), 16_000)
    with (
        serving(untrained(SPEAKER, tmp_path / "m.safetensors"), threshold=-1.0) as url,
        page_of(browser, url) as page,
    ):
        page.set_input_files("#file-first", str(loud))
        page.set_input_files("#file-second", str(soft))
        page.wait_for_selector("#waves .track >> nth=1")
        ends, heights = [], []
        for path in page.locator("#waves path").all():
            bars = re.findall(r"M([\d.]+) -([\d.]+)V", path.get_attribute("d"))
            ends.append(max(float(at) for at, _ in bars))
            heights.append(max(float(size) for _, size in bars))
        assert ends[1] == pytest.approx(ends[0] / 2, rel=0.02)  # a second beside two
        assert heights == pytest.approx([1, 0.25], abs=0.02)
        assert "First" in page.get_attribute("#waves", "aria-label")


def test_tabs_by_arrow_keys_names_and_contrast_in_light_and_dark(
    browser: Any, photos: Path, tmp_path: Path
) -> None:
    files = [str(path) for path in sorted(photos.rglob("*.png"))]
    entry = stored()
    for scheme in ("light", "dark"):
        model = untrained(FACE, tmp_path / "m.safetensors")
        rules = {"threshold": entry.at(0.1).value, "extras": extras(thresholds=entry)}
        with serving(model, **rules) as url, page_of(browser, url) as page:
            page.emulate_media(color_scheme=scheme)
            page.set_input_files("#file-first", files[0])
            page.set_input_files("#file-second", files[-1])
            page.click("#compare:not([disabled])")
            page.wait_for_selector(".verdict")
            for place in (0, int(page.get_attribute("#slider", "max"))):
                move(page, place)
                assert page.evaluate(LOW_CONTRAST) == []
            page.focus("#tab-verify")
            steps = (("Right", "identify"), ("Right", "gallery"), ("Right", "verify"))
            for key, expected in (*steps, ("Left", "gallery"), ("Home", "verify")):
                page.keyboard.press(key if key == "Home" else f"Arrow{key}")
                assert page.evaluate("document.activeElement.dataset.tab") == expected
                assert page.is_visible(f"#{expected}")
                assert page.evaluate(LOW_CONTRAST) == []
                assert page.evaluate(NAMELESS) == []


def test_a_tab_that_is_opened_before_the_server_answered_stays_open(
    browser: Any, tmp_path: Path
) -> None:
    model = untrained(FACE, tmp_path / "m.safetensors")
    with serving(model) as url:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        waiting: list[Any] = []
        page.route("**/health", lambda route: waiting.append(route))
        with page.expect_request("**/health"):
            page.goto(f"{url}#token={TOKEN}")
        page.click("[data-tab=gallery]")
        assert page.inner_text("#entries") == ""  # nothing is said of what is not known
        waiting[0].continue_()
        page.wait_for_selector("#formats:not(:empty)")
        page.wait_for_selector("#entries:has-text('--keep-media')")
        page.wait_for_selector("#file-enrolment", state="attached")
        page.wait_for_selector("#examples:not(:empty)", state="attached")
        assert page.is_visible("#gallery")
        page.context.close()


def test_the_gallery_shows_each_enrolment_and_what_is_kept_of_it(
    browser: Any, photos: Path, tmp_path: Path
) -> None:
    from toolkit.gallery import media

    files = [str(path) for path in sorted(photos.rglob("*.png"))]
    model = untrained(FACE, tmp_path / "m.safetensors")
    with (
        serving(model, tmp_path / "gallery", extras=extras(keeps_media=True)) as url,
        page_of(browser, url) as page,
    ):
        page.click("[data-tab=gallery]")
        for path in files[:2]:
            page.set_input_files("#file-enrolment", path)
            page.fill("#subject", "Ada <i>")
            page.click("#enrol:not([disabled])")
            page.wait_for_selector("#answer:has-text('is enrolled')")
            page.fill("#subject", "")
        assert "2 ×" in page.inner_text("#entries")
        page.wait_for_selector("#entries .thumb")
        page.click("[aria-label='Show the enrolments of Ada <i>']")
        page.wait_for_selector(".enrolments img >> nth=1")
        assert page.evaluate(
            "[...document.querySelectorAll('.enrolments img')].every((one) => one.naturalWidth)"
        )
        assert re.search(r"Enrolment 2 · 20\d\d-\d\d-\d\d · norm", page.inner_text(".enrolments"))
        assert "keeps a small picture" in page.inner_text("footer")
        page.click("[aria-label='Remove Ada <i>']")
        page.wait_for_selector("#answer:has-text('is erased')")
        assert page.evaluate("document.activeElement.id") == "enrolled"
        kept = (tmp_path / "gallery" / media.FOLDER).rglob("*.jpg")
        assert list(kept) == []
