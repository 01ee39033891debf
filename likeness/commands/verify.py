"""`likeness verify`: compare two files by a model. The work is done by likeness/verification.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from likeness.commands.options import (
    Frontend,
    ModelCalibration,
    ModelDetector,
    OwnThreshold,
    StoredThreshold,
    ThresholdFile,
    Trust,
    refuse_input_as_output,
    rule_of,
    warn,
)
from likeness.missing import refuse_missing_files, refuse_missing_model
from toolkit.printing import say

if TYPE_CHECKING:
    from likeness.verification import Verification
    from toolkit.models.checkpoint import Loaded

app = typer.Typer()


@app.command(
    epilog="Examples: likeness verify a.wav b.wav --model runs/an4 --far 0.01; likeness "
    "verify a.jpg b.jpg --model insightface:buffalo_l"
)
def verify(
    context: typer.Context,
    first: Annotated[
        Path, typer.Argument(metavar="A", help="A recording or image, as the model takes them.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The other one.")],
    model: Annotated[
        str,
        typer.Option(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, hub:FOLDER_OR_ID, an .onnx file, own.py[:NAME], or "
            "insightface:PATH, which is a recognition .onnx file or the folder of a pack such as "
            "buffalo_l. InsightFace's own weights are for non-commercial research only."
        ),
    ],
    detector: ModelDetector = None,
    far: StoredThreshold = None,
    threshold: OwnThreshold = None,
    thresholds: ThresholdFile = None,
    calibration: ModelCalibration = None,
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result into this JSON file.")
    ] = None,
) -> None:
    """Compare two files: are they of one subject?

    The command prints the score, the norms as a measure of quality, a decision where there is a
    threshold, and a probability where there is a calibration.
    """
    refuse_input_as_output(context, "json_file")
    refuse_missing_files([first, second])
    refuse_missing_model(model)
    rule = rule_of(threshold, far, thresholds)

    # These are slow to import, so that what is missing has to be reported before.
    from likeness import verification

    comparer = verification.load_to_compare(
        model,
        detector=detector,
        frontend=frontend,
        calibration=calibration,
        rule=rule,
        warn=warn,
        trust=trust or (),
    )
    verified = verification.verify(
        comparer.model,
        first,
        second,
        threshold=comparer.threshold,
        calibration=comparer.calibration,
        source=comparer.source,
    )
    if json_file:
        _write(json_file, (first, second), comparer.model, verified)
    say(verified.text())


def _write(
    json_file: Path, files: tuple[Path, Path], model: Loaded, verified: Verification
) -> None:
    """Write the result in schema "likeness.verification/1"."""
    from eval.formats.files import atomic_path

    document = {
        "schema": "likeness.verification/1",
        "files": [str(path) for path in files],
        **model.meta,
        **verified._asdict(),
    }
    with atomic_path(json_file) as partial_path:
        partial_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
