"""What models cost in use, one function for each part:

    OMP_NUM_THREADS=1 python benchmarks/use.py [onnx import] [--repeats 3] [--only ResNet34]

onnx
    Every backbone at its usual size with its front-end inside: torch (eager, float32) against ONNX
    Runtime running the file of `likeness export`. One recording of 3 s or one image, and batches of
    8. Milliseconds of CPU time a call, items a second of the batch; random weights, which do not
    change what is timed. "distance" and "norm" are what the export's own check found. Limit: none
    is known for ONNX Runtime; torch is the peer.
import
    `likeness --help` in a new process, wall seconds, the least of the repeats; of that what Python
    needs to start.

One thread, process time, the least of the repeats, both sides in turn.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from likeness.models import onnx as exported_models
from modalities.face import images as faces
from modalities.image import images
from modalities.speaker import audio
from modalities.speaker.features import WESPEAKER_FBANK
from modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from toolkit.backbones.bninception import BNInception
from toolkit.backbones.campplus import CAMPPlus
from toolkit.backbones.ecapa import ECAPA
from toolkit.backbones.eres2net import ERes2Net, ERes2NetV2
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.mobileface import MobileFaceNet
from toolkit.backbones.resnet import ResNet34
from toolkit.backbones.sfnet import SFNet
from toolkit.backbones.small import SmallCNN
from toolkit.backbones.statistics import OrderStatistics
from toolkit.backbones.vit import FaceViT, ViT
from toolkit.backbones.xvector import XVector
from toolkit.data.pixels import IMAGENET, INSIGHTFACE, PixelScale
from toolkit.models import export
from toolkit.models.checkpoint import Loaded
from toolkit.models.embed import TorchEmbedder

BATCH, SECONDS = 8, 3.0


class Kind(NamedTuple):
    frontend: Callable[[], Any]
    network: Callable[..., nn.Module]
    read: Callable[..., Any]


SPEECH = {
    "OrderStatistics": Kind(WESPEAKER_FBANK, OrderStatistics, audio.read),
    "XVector": Kind(WESPEAKER_FBANK, XVector, audio.read),
    "CAM++": Kind(WESPEAKER_FBANK, CAMPPlus, audio.read),
    "ECAPA c512": Kind(
        SpeechBrainFbank, partial(ECAPA, channels=512, mfa_channels=1536), audio.read
    ),
    "ResNet34": Kind(WESPEAKER_FBANK, ResNet34, audio.read),
    "ERes2Net": Kind(WESPEAKER_FBANK, ERes2Net, audio.read),
    "ERes2NetV2": Kind(WESPEAKER_FBANK, ERes2NetV2, audio.read),
}
_CROP_224, _CROP_227 = (
    partial(images.read, short_edge=256, crop=224),
    partial(images.read, short_edge=256, crop=227),
)
IMAGES = {
    "SmallCNN": Kind(partial(PixelScale, (0.0,), (1.0,)), SmallCNN, images.read),
    "MobileFaceNet": Kind(INSIGHTFACE, MobileFaceNet, faces.read),
    "SFNet20": Kind(INSIGHTFACE, SFNet, faces.read),
    "IResNet50": Kind(INSIGHTFACE, IResNet, faces.read),
    "FaceViT": Kind(INSIGHTFACE, FaceViT, faces.read),
    "ImageResNet50": Kind(IMAGENET, ImageResNet, _CROP_224),
    "BNInception": Kind(IMAGENET, BNInception, _CROP_227),
    "ViT-S/16": Kind(IMAGENET, ViT, _CROP_224),
}


def in_turn(works: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Least CPU seconds of each; they take turns, so that a busy moment of the machine does not hit
    one of them only.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(repeats):
        for work, own in zip(works, seconds, strict=True):
            started = time.process_time()
            work()
            own.append(time.process_time() - started)
    return list(map(min, seconds))


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def run(embedder: nn.Module, inputs: Tensor) -> None:
    with torch.no_grad():
        embedder(inputs)


def onnx(repeats: int, only: str) -> None:
    print(
        "| backbone | parameters, M | distance | norm | torch, ms | ONNX, ms | torch / ONNX | "
        "torch, items/s | ONNX, items/s | torch / ONNX, batch |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, kind in {**SPEECH, **IMAGES}.items():
        if only and only != name:
            continue
        torch.manual_seed(0)
        frontend = kind.frontend()
        spoken = name in SPEECH
        model = Loaded(
            TorchEmbedder(frontend, kind.network(frontend.dim)).eval(),
            kind.read,
            "speaker" if spoken else "image",
            "cosine",
            "",
            0,
        )
        with tempfile.TemporaryDirectory() as folder:
            found = export.export(model, Path(folder) / "model.onnx")
            other = exported_models.load(Path(folder) / "model.onnx")
        assert other is not None
        shape = (round(SECONDS * 16_000),) if spoken else other.embedder.backbone.shape
        inputs = torch.randn(BATCH, *shape) * 0.1 if spoken else torch.rand(BATCH, *shape) * 255
        works = [
            partial(run, one.embedder, part)
            for part in (inputs[:1], inputs)
            for one in (model, other)
        ]
        single, single_onnx, batch, batch_onnx = in_turn(works, repeats)
        row(
            name,
            f"{sum(one.numel() for one in model.embedder.parameters()) / 1e6:.1f}",
            f"{found.distance:.0e}",
            f"{found.norm_error:.0e}",
            f"{1e3 * single:.1f}",
            f"{1e3 * single_onnx:.1f}",
            f"{single / single_onnx:.2f}",
            f"{BATCH / batch:.1f}",
            f"{BATCH / batch_onnx:.1f}",
            f"{batch / batch_onnx:.2f}",
        )


def start(repeats: int, only: str) -> None:
    def least(*arguments: str) -> float:
        seconds = []
        for _ in range(3 * repeats):
            started = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        return min(seconds)

    print("\n| start | s | of that Python | wanted |\n|---|---|---|---|")
    row(
        "likeness --help",
        f"{least('-m', 'likeness.cli', '--help'):.3f}",
        f"{least('-c', 'pass'):.3f}",
        "under .3",
    )


PARTS: dict[str, Callable[[int, str], None]] = {"onnx": onnx, "import": start}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts",
        nargs="*",
        choices=[[], *PARTS],
        metavar="PART",
        help=f"{', '.join(PARTS)} (default: all)",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="One backbone.")
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "set OMP_NUM_THREADS=1 before Python starts: CPU time of many threads is not "
            "comparable",
            file=sys.stderr,
        )
    torch.set_num_threads(1)
    for name in given.parts or PARTS:
        PARTS[name](given.repeats, given.only)


if __name__ == "__main__":
    main()
