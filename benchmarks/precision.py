"""Measures what float16 and int8 make of a model: size, speed and the difference of cosines.

    python benchmarks/precision.py

Measures: files of `likeness export` in every --precision, in ONNX Runtime with one thread: CPU
    milliseconds for one input, and for each of a batch of eight. A recording has 3 s, a face
    112 x 112 pixels. Static int8 is calibrated on a third of the synthetic inputs that the export
    is checked on. The last column is the largest difference between the cosines of two such inputs
    in float32 and in this precision. The networks are untrained (the batch norms have seen such
    inputs), which costs the same; what a precision costs in EER is measured on trials, by
    `likeness export --trials`. `likeness:voice` is trained.
Limit: float32.
Needs: `pip install likeness[export]`.
Takes: five minutes.
Gives: the table of section precision of docs/reference/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from performance import in_turn, parser_of, row, table, warn_of_many_threads


def networks() -> dict[str, Any]:
    """Name -> embedder, in evaluation mode."""
    import torch

    from likeness.models.load import load
    from modalities.speaker.features import KaldiFbank
    from toolkit.backbones.iresnet import IResNet
    from toolkit.backbones.resnet import ResNet34
    from toolkit.data.pixels import INSIGHTFACE
    from toolkit.models import export
    from toolkit.models.embedder import TorchEmbedder

    torch.manual_seed(0)
    speaker = TorchEmbedder(KaldiFbank(), ResNet34(80, dim=256, width=32)).train()
    face = TorchEmbedder(INSIGHTFACE(), IResNet(3, depth=18)).train()
    with torch.no_grad():
        for _ in range(5):
            speaker(export.waves(16_000)[0])
            face(export.images((3, 112, 112))[-1])
    return {
        "ResNet34, voices": speaker.eval(),
        "IResNet18, faces": face.eval(),
        "likeness:voice (statistics)": load("likeness:voice").embedder.eval(),
    }


def session_of(proto: Any) -> Any:
    """The model in ONNX Runtime with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def cosines(run: Callable[[Any], Any], batches: list[Any]) -> Any:
    """The cosines of all pairs of inputs."""
    rows = np.concatenate([run(batch) for batch in batches]).astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def main() -> None:
    parser_of(__doc__).parse_args()
    warn_of_many_threads()
    from toolkit.models import export, precision

    table("model", "precision", "MB", "ms, one", "ms, each of 8", "speed", "cosines differ by")
    for name, embedder in networks().items():
        is_face = "faces" in name
        batches = export.images((3, 112, 112)) if is_face else export.waves(16_000)
        proto, frontend = export.translate(embedder, batches[-1], "images" if is_face else "waves")
        arrays = [batch.numpy() for batch in batches]
        calibration = [array[: max(1, len(array) // 3)] for array in arrays]
        protos = {
            "float32": proto,
            "float16": precision.convert(proto, "float16", keep=frontend),
            "int8, dynamic": precision.convert(proto, "int8", keep=frontend),
            "int8, static": precision.convert(
                proto, "int8", keep=frontend, calibration=calibration
            ),
        }
        runs: dict[str, Any] = {}
        for label, one in protos.items():
            session = session_of(one)
            key = session.get_inputs()[0].name
            runs[label] = lambda x, s=session, k=key: s.run(None, {k: x})[0]
        eight = np.concatenate([arrays[-1]] * 8)[:8]
        single = in_turn([partial(run, eight[:1]) for run in runs.values()], 7)
        many = in_turn([partial(run, eight) for run in runs.values()], 3)
        reference = cosines(runs["float32"], arrays)
        for (label, run), one, of_eight in zip(runs.items(), single, many, strict=True):
            size = f"{protos[label].ByteSize() / 1e6:.1f}" if label in protos else "-"
            differ = abs(cosines(run, arrays) - reference).max()
            row(
                name,
                label,
                size,
                f"{1e3 * one:.1f}",
                f"{1e3 * of_eight / 8:.1f}",
                f"{single[0] / one:.2f}",
                f"{differ:.4f}" if label != "float32" else "",
            )


if __name__ == "__main__":
    main()
