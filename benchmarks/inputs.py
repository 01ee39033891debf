"""Measures what comes before the network: reading, training views and the filterbank.

    OMP_NUM_THREADS=1 python benchmarks/inputs.py [--repeats 20]

Measures: CPU milliseconds of one thread, the least of the repeats; the works of a row take turns.
    Batches of 64 views of items that are in memory: crops of 2 s of voices, mirrored faces of
    112 x 112, shifted images of 32 x 32. JPEG files of smooth noise, 500 x 375: to a test view
    (shorter edge 256, centre crop of 224) and to a training view (random crop, 224). Recordings of
    3 s, read with the level and the bandwidth of speaker/folders. The filterbank of 3 s of noise,
    one by one and in batches of 8.
Peers: of the training view OpenCV's decoding and albumentations; of the filterbank torchaudio's.
Limits: one copy of each view into the batch; decoding alone, by OpenCV or libsndfile; of the
    filterbank the transform, power, product and logarithm of frames in a buffer that is there.
Needs: nothing more than Likeness, and no data.
Takes: two minutes of one core.
Gives: the table "Before the network" of docs/reference/performance.md.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import soundfile
import torch
from performance import in_turn, parser_of, row, table
from PIL import Image

from likeness import Item
from likeness.data import audio, images, synthetic
from likeness.eval.items.items import Items
from likeness.frontends import FLIP_VIEW, REVISITING, KaldiFbank, shift_view, train_view
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.data.batch import Augment, Draw, Views, collate_views
from likeness.toolkit.data.reading import Array, with_settings_of

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
Works = Sequence[Callable[[], Any]]  # ours, the limit and, of some, the peer
NUM = 64


def compared(name: str, works: Works, repeats: int, number: int = 1) -> None:
    """Print the row of works that each do the same a number of times."""
    ours, limit, *peers = (1e3 * taken / number for taken, _ in in_turn(works, repeats))
    time, ratio = (f"{peers[0]:.3f}", f"{ours / peers[0]:.2f}") if peers else ("", "")
    row(name, f"{ours:.3f}", time, f"{limit:.3f}", f"{ours / limit:.2f}", ratio)


def each(work: Callable[[Any], Any], parts: Sequence[Any]) -> Callable[[], None]:
    """The work on every part."""

    def run() -> None:
        for part in parts:
            work(part)

    return run


def in_memory(values: Array, item: Item) -> Array:
    """The input of an item whose id is its number."""
    return values[int(item.id)]


def rows_of_views(repeats: int) -> None:
    """Batches of views of items in memory."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(256, size=(NUM, edge, edge, 3), dtype=np.uint8) for edge in (112, 32)]
    faces, small = (levels.transpose(0, 3, 1, 2) for levels in pixels)
    voices = rng.normal(0, 0.1, (NUM, 48_000)).astype(np.float32)
    items = Items.of(Item(str(i), Path(f"{i}"), "a") for i in range(NUM))
    draws = [Draw(i, 0, i) for i in range(NUM)]
    crop: Augment = partial(train_view, seconds=(2.0, 2.0))
    values: Array
    for name, values, augment in (
        ("crops of 2 s", voices, crop),
        ("mirrored faces", faces, FLIP_VIEW),
        ("shifted images, 32 x 32", small, shift_view),
    ):
        read = partial(in_memory, values)
        views = Views(items, np.zeros(NUM, np.int64), read, augment, 0, cache=True)
        shown = [views[draw].input for draw in draws]  # type: ignore[union-attr]
        batch = np.zeros((NUM, *shown[0].shape), shown[0].dtype)
        works = [
            lambda views=views: collate_views([views[draw] for draw in draws]),
            partial(np.stack, shown, out=batch),
        ]
        compared(f"{NUM} views from memory: {name}", works, repeats)


def jpegs(folder: Path) -> list[Item]:
    """Files of smooth noise: as with photographs, smoothness decides how fast JPEG decodes."""
    rng, items = np.random.default_rng(0), []
    for number in range(NUM // 2):
        noise = rng.integers(256, size=(46, 62, 3), dtype=np.uint8)
        smooth = np.asarray(cv2.resize(noise, (500, 375), interpolation=cv2.INTER_CUBIC), np.uint8)
        items.append(Item(str(number), folder / f"{number}.jpg"))
        Image.fromarray(smooth).save(items[-1].path, quality=90)
    return items


def rows_of_files(repeats: int, folder: Path) -> None:
    """Files to test and training views."""
    import albumentations

    def decoded(item: Item) -> Any:
        content = np.frombuffer(item.path.read_bytes(), np.uint8)
        return cv2.imdecode(content, cv2.IMREAD_COLOR_RGB)

    crop = albumentations.RandomResizedCrop((224, 224), area_for_downscale="image", p=1.0)
    pipeline: Any = albumentations.Compose([crop, albumentations.HorizontalFlip(p=0.5)], seed=0)
    read = with_settings_of(images.read, REVISITING)
    rng = np.random.default_rng(0)
    items = jpegs(folder)
    limit = each(decoded, items)
    test = with_settings_of(partial(images.read, short_edge=256, crop=224))
    compared("JPEG, 500 x 375, to a test view", [each(test, items), limit], repeats, len(items))
    works = [
        each(lambda item: REVISITING(read(item), rng, rng), items),
        limit,
        each(lambda item: pipeline(image=decoded(item)), items),
    ]
    compared("JPEG, 500 x 375, to a training view", works, repeats, len(items))

    recordings = [Item(str(number), folder / f"{number}.flac") for number in range(NUM // 2)]
    for number, item in enumerate(recordings):
        soundfile.write(item.path, synthetic.voice(number, 0, seconds=(3.0, 3.0)), 16_000)
    whole = partial(audio.read, level_dbfs=-26.0, needs_hz=4500.0)
    works = [each(whole, recordings), each(lambda item: soundfile.read(item.path), recordings)]
    compared("FLAC of 3 s, with level and bandwidth", works, repeats, len(recordings))


@torch.no_grad()
def rows_of_filterbank(repeats: int) -> None:
    """The filterbank of 3 s."""
    fbank, waves = KaldiFbank().eval(), torch.randn(NUM, 48_000) * 0.1
    padded = torch.zeros(fbank.num_frames(48_000), fbank.fft_size)

    def bare(wave: torch.Tensor) -> None:
        frames = wave[0].unfold(0, fbank.frame_samples, fbank.hop_samples)
        padded[:, : fbank.frame_samples] = frames
        squares = torch.view_as_real(torch.fft.rfft(padded)).square_()
        torch.mm(squares[..., 0] + squares[..., 1], fbank.mel).log_()

    kaldi = import_torchaudio().compliance.kaldi.fbank
    peer = partial(kaldi, num_mel_bins=80, window_type="hamming", dither=0.0)
    for name, size in (("one by one", 1), ("in batches of 8", 8)):
        others = [each(work, waves.split(1)) for work in (bare, peer)]
        works = [each(fbank, waves.split(size)), *others]
        compared(f"filterbank of 3 s, {name}", works, repeats, NUM)


def main() -> None:
    """Print the table."""
    arguments = parser_of(__doc__, ("repeats", 20)).parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    table("work", "ours, ms", "peer, ms", "limit, ms", "ours/limit", "ours/peer")
    rows_of_views(arguments.repeats)
    with tempfile.TemporaryDirectory() as folder:
        rows_of_files(arguments.repeats, Path(folder))
    rows_of_filterbank(arguments.repeats)


if __name__ == "__main__":
    main()
