"""`likeness align`: crops of faces from photographs. modalities/face/align.py does the work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import MinScore, app, input_file, size_of
from likeness.toolkit.console import say


@app.command(epilog="Example: likeness align photographs --out crops --detector yunet.onnx")
def align(
    photographs: Annotated[
        Path,
        typer.Argument(
            help="The folder of the photographs, at any depth.", exists=True, file_okay=False
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="The folder of the crops, which get the places of their images.")
    ],
    detector: Annotated[Path, input_file("An SCRFD (with landmarks) or YuNet .onnx file.")],
    size: Annotated[
        str, typer.Option(metavar="HEIGHTxWIDTH", help="The size of the crops in pixels.")
    ] = "112x112",
    choose: Annotated[
        Literal["largest", "central", "all"],
        typer.Option(
            "--faces",
            help="Which of several faces is taken: the largest, as InsightFace does the largest "
            "near the centre, or all of them, as NAME#1.png, NAME#2.png and so on.",
        ),
    ] = "largest",
    min_score: MinScore = None,
) -> None:
    """Find the faces in photographs, and write them as crops that face networks take.

    Crops that are there already are kept, so that a stopped command goes on. OUT/failures.tsv lists
    photographs without a face or that cannot be read, and OUT/several.tsv those with several faces.
    """
    from likeness.modalities.face.align import align_folder

    height, width = size_of(size)
    made = align_folder(
        photographs,
        out,
        detector=detector,
        size=height,
        width=width,
        choose=choose,
        min_score=min_score,
    )
    say(f"{len(made.done)} crops in {out}")
    if made.several:
        say(f"{len(made.several)} images have several faces, see {out / 'several.tsv'}")
    if made.failures:
        say(f"{len(made.failures)} images failed, see {out / 'failures.tsv'}")
