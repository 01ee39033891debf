"""The page of `likeness evaluate` in headless Chromium, light, dark and on a phone; skipped where
Chromium or playwright is absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from eval.formats import embeddings as files
from eval.formats.trials import write_scores
from eval.protocols.verification import VerificationSettings
from eval.types import Embeddings, Trials
from likeness.commands.evaluate import Page, evaluate_files


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two systems, one of images and one of recordings, with names that would break a careless
    page.
    """
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    ids = tuple(
        f"s{i // 4}/{'<img src=x onerror=alert(1)>' if i == 5 else 'a' * 60}{i}."
        f"{'png' if i % 2 else 'wav'}"
        for i in range(24)
    )
    for i, item_id in enumerate(ids):
        path = folder / "media" / item_id
        path.parent.mkdir(parents=True, exist_ok=True)
        if i % 2:
            Image.fromarray(rng.integers(0, 255, (90, 70, 3), dtype=np.uint8)).save(path)
        else:
            soundfile.write(path, 0.1 * rng.standard_normal(4000), 8000)
    a, b = np.triu_indices(len(ids), 1)
    trials = Trials(ids, ids, a, b, a // 4 == b // 4)
    assert trials.target is not None
    embedded = Embeddings(ids, rng.standard_normal((24, 3)) + 3 * np.eye(3)[np.arange(24) // 4 % 3])
    files.write(folder / "e.npz", embedded)
    for name in ("one", "a-system-of-a-rather-long-name"):
        write_scores(
            folder / f"{name}.txt", trials, 2 * trials.target + rng.standard_normal(len(trials))
        )
    evaluate_files(
        [folder / "one.txt", folder / "a-system-of-a-rather-long-name.txt"],
        VerificationSettings(llr=True, num_resamples=20),
        page=Page(
            folder / "out",
            embeddings=[folder / "e.npz"],
            media=folder / "media",
            command="likeness evaluate " + "x" * 300,
        ),
    )
    return folder / "out" / "index.html"


def luminance(colour: str) -> float:
    red, green, blue = (
        int(word) / 255 for word in colour[colour.index("(") + 1 : colour.index(")")].split(",")[:3]
    )
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (red, green, blue)
    ]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1100), pytest.param("dark", 360, marks=pytest.mark.slow)]
)
def test_the_page_in_a_browser(page_file: Path, browser: Any, scheme: str, width: int) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 780})
    page = context.new_page()
    output, asked = [], []
    page.on("console", lambda message: output.append(message.text))
    page.on("pageerror", lambda error: output.append(str(error)))
    page.on("dialog", lambda dialog: output.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out
    ink, paper = page.evaluate(
        "(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))"
    )
    bright, dim = sorted((luminance(ink), luminance(paper)), reverse=True)
    assert (bright + 0.05) / (dim + 0.05) > 7  # contrast of WCAG AAA
    assert (luminance(paper) > luminance(ink)) == (scheme == "light")
    images = page.evaluate(
        "[...document.images].map(one => one.decode().then(() => one.naturalWidth, () => 0))".join(
            ["Promise.all(", ")"]
        )
    )
    assert len(images) > 10
    assert min(images) > 0
    play = (
        "one => new Promise(done => {one.onloadedmetadata = () => done(one.duration); one.onerror "
        "= () => done(-1); one.preload = 'auto'; one.load()})"
    )
    assert page.eval_on_selector("audio", play) == pytest.approx(0.5, abs=0.05)
    # DET and ROC, histograms, reliability, error versus reject, three maps
    assert page.locator("svg").count() == 2 + 2 + 1 + 1 + 3
    assert [text for text in asked if not text.startswith("data:")] == [page_file.as_uri()]
    assert output == []
    context.close()
