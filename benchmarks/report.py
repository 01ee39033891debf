"""Measures the page that `likeness evaluate --report` writes, in a real browser.

    python benchmarks/report.py [--trials 300000] [--runs 5] [--data FOLDER]

Measures: a page of 300,000 trials between about 2,000 real recordings, with embeddings, sounds and
    spectrograms: its size, the time from opening the file until the results can be read and the
    threshold slider answers, the time until every figure is drawn, and the time from a move of the
    slider until the browser has painted the frame after it, with a histogram in sight. Times are
    the median of the runs; of the slider, the median and the largest over 100 moves of every run,
    and the CPU time of the page's main thread, which other work on the machine changes little. The
    embeddings are mean and deviation of log spectra in 40 bands, whitened: what the page holds
    matters here, and not how well they do.
Peer: none. Beside it stands what the plotting packages put into a page, as their wheels hold it.
Limit: a screen shows a frame every 16.7 ms, so that two frames are the least for a move.
Needs: `pip install likeness[report] playwright`, Chromium (`apt-get install chromium`), and the
    recordings in ../shared/data, or in the folder of --data.
Takes: three minutes.
Gives: the table of section report of docs/reference/performance.md.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soundfile
from performance import ROOT, parser_of, row, table

DATA = ROOT.parent / "shared" / "data"
# Of each: pattern of the files, and which part of the path is the speaker.
SOURCES = (
    ("an4/wav/*/*.flac", lambda path: path.parent.name),
    ("speechocean/flac/*/*.flac", lambda path: f"so{path.parent.name}"),
    ("librispeech/flac/*/*.flac", lambda path: f"ls{path.parent.name}"),
    ("fsdd/recordings/*_[012].wav", lambda path: path.stem.split("_")[1]),
)
NUM_BANDS = 40
MOVES = """async () => {
    const slider = document.querySelector(".bar input"), last = Number(slider.max), times = [];
    const frame = () => new Promise(requestAnimationFrame);
    for (let move = 0; move < 100; move++) {
        const begin = performance.now();
        slider.value = Math.round((last * ((move * 37) % 100)) / 100);
        slider.dispatchEvent(new Event("input"));
        const handled = performance.now();
        await frame();
        await frame();
        times.push([handled - begin, performance.now() - begin]);
    }
    return times;
}"""


def spectra(path: Path) -> np.ndarray:
    """Mean and deviation of the log power in 40 bands of a recording's first 10 seconds."""
    with soundfile.SoundFile(path) as file:
        wave = file.read(10 * file.samplerate)
        size = file.samplerate // 40
    frames = wave[: wave.size // size * size].reshape(-1, size) * np.hanning(size)
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    edges = np.linspace(0, power.shape[1], NUM_BANDS + 1).astype(int)[:-1]
    bands = np.log(np.add.reduceat(power, edges, axis=1) + 1e-10)
    return np.concatenate([bands.mean(axis=0), bands.std(axis=0)])


def write_files(folder: Path, num_trials: int, data: Path) -> Mapping[str, Path]:
    """Write embeddings, scores and the list of the media."""
    from eval.formats import embeddings as files
    from eval.formats.trials import write_scores
    from eval.types import Embeddings, Trials

    items = {
        f"{speaker(path)}/{path.name}": path
        for pattern, speaker in SOURCES
        for path in sorted(data.glob(pattern))
    }
    matrix = np.stack([spectra(path) for path in items.values()])
    _, values, axes = np.linalg.svd(matrix - matrix.mean(axis=0), full_matrices=False)
    matrix = (matrix - matrix.mean(axis=0)) @ (axes / values[:, None]).T * np.sqrt(len(matrix))
    ids = tuple(items)
    subject = np.unique([id.split("/")[0] for id in ids], return_inverse=True)[1]
    first, second = np.triu_indices(len(ids), 1)
    target = subject[first] == subject[second]
    others = np.random.default_rng(0).permutation(np.flatnonzero(~target))
    kept = np.sort(np.append(np.flatnonzero(target), others[: num_trials - int(target.sum())]))
    trials = Trials(ids, ids, first[kept], second[kept], target[kept])
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    paths = {name: folder / name for name in ("scores.npz", "embeddings.npz", "media.txt")}
    write_scores(
        paths["scores.npz"], trials, np.sum(unit[trials.enrol] * unit[trials.probe], axis=1)
    )
    files.write(paths["embeddings.npz"], Embeddings(ids, matrix.astype(np.float32)))
    paths["media.txt"].write_text("".join(f"{id}\t{path}\n" for id, path in items.items()))
    print(
        f"{len(trials):,} trials, {len(ids):,} items, {subject.max() + 1:,} speakers\n", flush=True
    )
    return paths


def write_page(folder: Path, paths: Mapping[str, Path]) -> tuple[Path, float]:
    """Write the page; returns its path and the seconds that it took."""
    import likeness

    begin = time.perf_counter()
    settings = likeness.VerificationSettings(num_resamples=0)
    evaluation = likeness.evaluate(
        paths["scores.npz"], settings, embeddings=paths["embeddings.npz"]
    )
    page = evaluation.report(folder / "report", media=paths["media.txt"], command="benchmark")
    return page, time.perf_counter() - begin


def open_page(browser: Any, page_file: Path) -> dict[str, Any]:
    """Open the page once, and move its slider."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=60_000)
    milliseconds = page.evaluate(
        "[performance.getEntriesByName('ready')[0].startTime,"
        " performance.getEntriesByName('drawn')[0].startTime]"
    )
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.locator("figure.plot").nth(1).scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    begin = busy(metrics)
    moves = page.evaluate(MOVES)
    cpu = 1e3 * (busy(metrics) - begin) / len(moves)
    page.close()
    return {"ready": milliseconds[0], "drawn": milliseconds[1], "moves": moves, "cpu": cpu}


def busy(metrics: Any) -> float:
    """Seconds of CPU time that the page's main thread has worked."""
    values = metrics.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in values if each["name"] == "TaskDuration")


def sizes() -> Mapping[str, int]:
    """Bytes of what Bokeh puts into a page, whole and without what reports leave out."""
    from bokeh.resources import Resources

    names = {"Bokeh, core": ["bokeh"], "Bokeh, core and widgets": ["bokeh", "bokeh-widgets"]}
    return {
        name: sum(map(len, Resources(mode="inline", components=components).js_raw))
        for name, components in names.items()
    }


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def main() -> None:
    """Measure a page and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=300_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with TemporaryDirectory() as name, sync_playwright() as playwright:
        paths = write_files(Path(name), arguments.trials, arguments.data)
        page_file, seconds = write_page(Path(name), paths)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        runs = [open_page(browser, page_file) for _ in range(arguments.runs)]
        browser.close()
        moves = [move for run in runs for move in run["moves"]]
        ready, drawn = (median([run[name] for run in runs]) / 1e3 for name in ("ready", "drawn"))
        table("page", "measured", "limit set")
        row("size", f"{page_file.stat().st_size / 1e6:.1f} MB", "10 MB")
        row("made in (no resamples)", f"{seconds:.1f} s", "")
        row(
            "results and slider ready",
            f"{ready:.2f} s",
            "2 s",
        )
        row("every figure drawn", f"{drawn:.2f} s", "")
        row(
            "a move, CPU time of the page",
            f"{median([run['cpu'] for run in runs]):.1f} ms",
            "50 ms",
        )
        row("a move of the slider, handled", f"{median([move[0] for move in moves]):.1f} ms", "")
        row("a move, two frames later", f"{median([move[1] for move in moves]):.1f} ms", "50 ms")
        row("the slowest of them", f"{max(move[1] for move in moves):.1f} ms", "50 ms")
    print()
    table("plotting package", "in the page")
    for package, size in sizes().items():
        row(package, f"{size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
