"""The page of `likeness evaluate` in headless Chromium, light, dark and on a phone; skipped where
Chromium or playwright is absent.
"""

import csv
import json
import re

import numpy as np
import pytest
import soundfile
from PIL import Image

import likeness
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.types import Trials


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Two systems, one of images and one of recordings, with names that would break a careless
    page.
    """
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    names = ["a" * 60] * 24
    names[5] = "<img src=x onerror=alert(1)>"
    ids = tuple(f"s{i // 4}/{names[i]}{i}.{('wav', 'png')[i % 2]}" for i in range(24))
    for i, item_id in enumerate(ids):
        path = folder / "media" / item_id
        path.parent.mkdir(parents=True, exist_ok=True)
        if i % 2:
            Image.fromarray(rng.integers(0, 255, (90, 70, 3), dtype=np.uint8)).save(path)
        else:
            soundfile.write(path, 0.1 * rng.standard_normal(4000), 8000)
    a, b = np.triu_indices(len(ids), 1)
    trials = Trials(ids, ids, a, b, a // 4 == b // 4)
    embedded = Embeddings(ids, rng.standard_normal((24, 3)) + 3 * np.eye(3)[np.arange(24) // 4 % 3])
    files.write_embeddings(folder / "e.npz", embedded)
    systems = [folder / "one.txt", folder / "a-system-of-a-rather-long-name.txt"]
    for path in systems:
        write_scores(path, trials, 2 * trials.target + rng.standard_normal(len(trials)))
    settings = VerificationSettings(llr=True, num_resamples=20)
    result = likeness.evaluate(systems, settings, embeddings=folder / "e.npz")
    return result.report(folder / "out", media=folder / "media", command="x" * 300)


@pytest.fixture
def page(page_file, browser):
    """The page, drawn, in a window of a desktop."""
    context = browser.new_context(viewport={"width": 1100, "height": 780}, accept_downloads=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    yield page
    context.close()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1100), pytest.param("dark", 360, marks=pytest.mark.slow)]
)
def test_the_page_in_a_browser(page_file, browser, scheme, width):
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
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", paper)[0]) > 128) == (scheme == "light")
    width_of = "one => one.decode().then(() => one.naturalWidth, () => 0)"
    images = page.evaluate(f"Promise.all([...document.images].map({width_of}))")
    assert len(images) > 10
    assert min(images) > 0
    play = (
        "one => new Promise(done => {one.onloadedmetadata = () => done(one.duration); one.onerror "
        "= () => done(-1); one.preload = 'auto'; one.load()})"
    )
    assert page.eval_on_selector("audio", play) == pytest.approx(0.5, abs=0.05)
    # a histogram and DET, a Tippett plot, risk and coverage, a map
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.locator("figure.plot .actions").count() == 2 + 1 + 1 + 1
    assert [text for text in asked if not text.startswith("data:")] == [page_file.as_uri()]
    assert output == []
    context.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_query_has_all_its_neighbours_in_sight(width, browser, tmp_path):
    rng = np.random.default_rng(0)
    ids = tuple(f"a class of a long name {i // 4}/{'x' * 60}{i}.png" for i in range(24))
    for item_id in ids:
        (tmp_path / item_id).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (90, 170, 3), dtype=np.uint8)).save(tmp_path / item_id)
    found = likeness.retrieve(Embeddings(ids, rng.standard_normal((24, 3))))
    file = found.report(tmp_path / "out", media=tmp_path)
    page = browser.new_context(viewport={"width": width, "height": 780}).new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nor the legend
    assert page.locator(".found tbody tr").first.locator("td img").count() == 5
    ends = "[...document.querySelectorAll('.found :is(td, img, span)')]"
    ends += ".map(one => one.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= width
    page.context.close()


def test_the_slider_shows_exact_counts_and_moves_all(page_file, page):
    """Against counts over the scores in the file."""
    trials, values = read_scores(page_file.parent.parent / "one.txt")
    row = page.locator(".operating tr[data-system='one']")
    data = json.loads(page.locator(".operating .points script").first.text_content())
    slider = page.locator(".bar input")
    for position in (0, 40, len(data["thresholds"]) - 1):
        moved = "(one, i) => {one.value = i; one.dispatchEvent(new Event('input'))}"
        slider.evaluate(moved, position)
        accepted = values >= data["thresholds"][position]
        false_accepts = int(np.count_nonzero(accepted & ~trials.target))
        false_rejects = int(np.count_nonzero(~accepted & trials.target))
        num_targets = int(trials.target.sum())
        texts = row.locator("td").all_text_contents()
        assert texts[3] == f"{false_accepts} of {len(trials) - num_targets}"
        assert texts[4] == f"{false_rejects} of {num_targets}"
        assert texts[1] == f"{100 * false_accepts / (len(trials) - num_targets):.3f}"
        for trial in page.locator("tr[data-system='one'][data-score]").all():
            accept = float(trial.get_attribute("data-score")) >= data["thresholds"][position]
            assert ("accept" if accept else "reject") in trial.locator(".verdict").text_content()
        # The line in the histogram stands at the threshold.
        page.locator("figure.plot").first.scroll_into_view_if_needed()
        page.evaluate("new Promise(done => setTimeout(done, 150))")
        places = page.evaluate(
            "Bokeh.documents.flatMap(one => [...one.all_models])"
            ".filter(one => one.type === 'Span' && one.tags[0]?.system === 'one')"
            ".map(one => one.location)"
        )
        assert places == [data["thresholds"][position]]
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert slider.evaluate("one => Number(one.value)") == len(data["thresholds"]) - 2
    assert slider.get_attribute("aria-valuetext").count("%") == 2


def test_a_point_of_the_map_is_told_by_its_name(page):
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    points = json.loads(page.locator(".map > script").first.text_content())
    hostile = next(id for id in points["ids"] if "<img" in id)
    field = page.locator(".map input").first
    field.fill(hostile)
    field.dispatch_event("change")
    about = page.locator(".map .about").first
    assert hostile in about.text_content()
    assert about.locator("ul").first.locator("li").count() == 5
    about.locator("ul button").first.click()
    first = points["neighbours"][points["ids"].index(hostile)][0]
    assert points["ids"][first] in about.locator("strong").text_content()
    assert dialogs == []


def test_everything_can_be_saved_and_printed(page, tmp_path):
    starts = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b"one,x,y"}
    for name, start in starts.items():
        with page.expect_download() as download:
            det = page.locator("figure.plot").nth(1)
            det.locator(".actions button", has_text=name).click()
        download.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    with page.expect_download() as download:
        page.locator("table.sortable").first.locator("xpath=../..").get_by_text("CSV").click()
    download.value.save_as(tmp_path / "table.csv")
    rows = list(csv.reader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert rows[0][0] == "Subject"
    assert sorted(row[0] for row in rows[1:]) == [f"s{i}" for i in range(6)]
    page.locator("table.sortable th button").nth(2).click()
    assert page.locator("th[aria-sort=descending]").count() == 1
    assert page.pdf(format="A4").startswith(b"%PDF")
