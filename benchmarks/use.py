"""Measures exported models in use, beside the networks of torch that they were made of.

    OMP_NUM_THREADS=1 python benchmarks/use.py [--repeats 3] [--only ResNet34]

Measures: usual backbones at their sizes with its front-end inside: the file of `likeness export`
    run by ONNX Runtime. One recording of 3 s or one image, and batches of 8. Milliseconds a call,
    items a second of the batch; random weights, which do not change what is timed. Wall-clock time
    of one thread, the least of the repeats, both sides in turn.
Peer: torch (eager, float32).
Limits: none is known.
Needs: onnx, onnxscript and onnxruntime, which come with the extra `test`. No data.
Takes: four minutes of one core; one small backbone half a minute.
Gives: the table "Use" of docs/reference/performance.md.
"""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from performance import in_turn, parser_of, row, table
from torch import nn

from likeness.backbones import ECAPA, CAMPPlus, IResNet, MobileFaceNet, OrderStatistics, ResNet
from likeness.data import audio
from likeness.frontends import INSIGHTFACE, SpeechBrainFbank
from likeness.modalities.face import images as faces
from likeness.modalities.speaker.features import WESPEAKER_FBANK
from likeness.models.load import load_exported
from likeness.toolkit.data.reading import Floats
from likeness.toolkit.models import export
from likeness.toolkit.models.embedder import TorchEmbedder, in_torch
from likeness.toolkit.models.loaded import Loaded

BATCH, SECONDS = 8, 3.0
ECAPA_C512 = partial(ECAPA, channels=512)
# The front-end, the backbone, and the reader that they are used with.
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., nn.Module], Callable[..., Any]]] = {
    "OrderStatistics": (WESPEAKER_FBANK, OrderStatistics, audio.read),
    "CAM++": (WESPEAKER_FBANK, CAMPPlus, audio.read),
    "ECAPA c512": (SpeechBrainFbank, ECAPA_C512, audio.read),
    "ResNet34": (WESPEAKER_FBANK, ResNet, audio.read),
    "MobileFaceNet": (INSIGHTFACE, MobileFaceNet, faces.read),
    "IResNet50": (INSIGHTFACE, IResNet, faces.read),
    "IResNet18": (INSIGHTFACE, partial(IResNet, depth=18), faces.read),
}


def model_of(name: str) -> Loaded:
    """An untrained model with a backbone of KINDS."""
    torch.manual_seed(0)
    make_frontend, make_network, read = KINDS[name]
    frontend, modality = make_frontend(), "speaker" if read is audio.read else "image"
    embedder = TorchEmbedder(frontend, make_network(frontend.dim)).eval()
    return Loaded(embedder, read, modality, "cosine", "", 0)


def inputs_of(model: Loaded) -> Floats:
    """A batch of recordings of 3 s, or of images of 112 x 112."""
    rng = np.random.default_rng(0)
    if model.modality == "speaker":
        return 0.1 * rng.standard_normal((BATCH, round(SECONDS * 16_000)), dtype=np.float32)
    return 255 * rng.random((BATCH, 3, 112, 112), dtype=np.float32)


def exported(model: Loaded, file: Path, **settings: Any) -> Loaded:
    """The model as a file of `likeness export`, read again."""
    export.export(model, file, **settings)
    return load_exported(file)


def onnx_row(name: str, repeats: int) -> None:
    """Print the row of a backbone."""
    model = model_of(name)
    with tempfile.TemporaryDirectory() as folder:
        in_onnx = exported(model, Path(folder) / "model.onnx")
    inputs = inputs_of(model)
    sides = [side.embedder.embed_batch for side in (model, in_onnx)]
    works = [partial(side, part) for part in (inputs[:1], inputs) for side in sides]
    times = [seconds for seconds, _ in in_turn(works, repeats, clock=time.perf_counter)]
    millions = sum(weights.numel() for weights in in_torch(model).parameters()) / 1e6
    texts = [f"{1e3 * seconds:.1f}" for seconds in times[:2]]
    row(name, f"{millions:.1f}", *texts, *(f"{BATCH / seconds:.1f}" for seconds in times[2:]))


def main() -> None:
    """Print the table."""
    only = ("only", "", "one backbone, by the name in the table")
    arguments = parser_of(__doc__, ("repeats", 3), only).parse_args()
    torch.set_num_threads(1)
    times = ("one: torch, ms", "ONNX, ms", "batch of 8: torch, items/s", "ONNX, items/s")
    table("backbone", "parameters, M", *times)
    for name in KINDS:
        if arguments.only in ("", name):
            onnx_row(name, arguments.repeats)


if __name__ == "__main__":
    main()
