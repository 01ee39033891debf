"""Makes docs/pictures.png, the web page and a report beside each other, from the demo of faces.

    likeness demo --only face --out DEMO
    python docs/make_pictures.py DEMO

It serves the model of DEMO on this machine, lets Chromium compare the first two examples, and opens
the report. It needs the extra serve, playwright and Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "pictures.png"
WIDTH, HEIGHT = 800, 960  # of each half
LIKENESS = [sys.executable, "-m", "likeness"]


@contextmanager
def served(demo: Path) -> Iterator[str]:
    """Serve the model of a demo; gives the address with its token."""
    options = ["--model", str(demo / "run"), "--examples", str(demo / "data"), "--far", "0.1"]
    command = [*LIKENESS, "serve", *options, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None, "the server did not say its address"
            yield address[0]
        finally:
            server.terminate()


def page(browser: Any, demo: Path) -> Image.Image:
    """Return the web page after a comparison."""
    with served(demo) as url:
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        shown.goto(url)
        shown.click("#examples button >> nth=0")
        shown.click("#compare:not([disabled])")
        shown.wait_for_selector(".verdict")
        shown.wait_for_function("[...document.images].every((image) => image.complete)")
        taken = shown.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
        shown.close()
    return Image.open(BytesIO(taken)).convert("RGB")


def report(browser: Any, demo: Path) -> Image.Image:
    """Return the curves and the hardest trials of the report."""
    shown = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark", reduced_motion="reduce"
    )
    shown.goto((demo / "report" / "index.html").absolute().as_uri())
    shown.wait_for_selector("canvas", state="attached")
    halves: list[Image.Image] = []
    for place in ("#errors-and-thresholds", ":text-is('Hardest trials')"):
        shown.locator(place).first.evaluate("(part) => part.scrollIntoView({block: 'start'})")
        shown.wait_for_timeout(1_000)  # figures are drawn when they come into sight
        taken = shown.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT // 2})
        halves.append(Image.open(BytesIO(taken)).convert("RGB"))
    return beside(halves, down=True)


def beside(images: list[Image.Image], *, down: bool = False) -> Image.Image:
    """Return images in a row, or one below the other."""
    width, height = images[0].size
    number = len(images)
    joined = Image.new("RGB", (width, number * height) if down else (number * width, height))
    for place, image in enumerate(images):
        joined.paste(image, (0, place * height) if down else (place * width, 0))
    return joined


def main() -> None:
    """Make the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("demo", type=Path, help="the folder of likeness demo --only face")
    demo = parser.parse_args().demo
    path = shutil.which("chromium") or shutil.which("google-chrome")
    # Chromium makes a socket among the temporary files, and the system limits its path.
    environment = {**os.environ, "TMPDIR": "/tmp"}
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=path, args=["--no-sandbox"], env=environment
        )
        picture = beside([page(browser, demo), report(browser, demo)])
        browser.close()
    picture.quantize(192).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
