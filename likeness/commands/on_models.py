"""The commands on a trained model: embed, verify, export, serve."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from likeness.commands.options import (
    EXISTING,
    PACK,
    placed,
    refuse_input_as_output,
)
from likeness.missing import refuse_missing_files, refuse_missing_model
from toolkit.printing import one_line, say

app = typer.Typer()


@app.command(
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out "
    "embeddings.npz; "
    "likeness embed --model runs/ms1mv2 --ijb IJBC --flip concat --workers 8 --batch-size 64 --out "
    "ijbc.npz"
)
def embed(
    model: Annotated[
        str,
        typer.Option(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE, "
            "wespeaker:FILE.pt, insightface:PATH or an .onnx file."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write: .npz, .ark (with .scp), .parquet or .h5, or a LanceDB table "
            "lancedb:DIR/TABLE.",
            parser=placed,
            metavar="FILE",
        ),
    ],
    items: Annotated[
        Path | None,
        typer.Option(
            help="A list with one path per line, or with lines `id path [label]`.", **EXISTING
        ),
    ] = None,
    ijb: Annotated[
        Path | None,
        typer.Option(
            help="The folder of IJB-B or IJB-C (with meta and loose_crop), instead of a list. "
            "Its faces are aligned by its landmarks.",
            **PACK,
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(help="The folder that relative paths start from (default: the list's own)."),
    ] = None,
    bad_items: Annotated[
        str,
        typer.Option(
            help="What becomes of unreadable items: skip leaves them out and names them, refuse "
            "writes nothing."
        ),
    ] = "skip",
    batch_size: Annotated[
        int, typer.Option(min=1, help="How many inputs make a batch; this changes no embedding.")
    ] = 16,
    flip: Annotated[
        Literal["none", "sum", "mean", "concat"],
        typer.Option(
            help="For images: how the embedding is joined with that of the mirror image. concat "
            "keeps "
            "both, which every IJB preset can use."
        ),
    ] = "none",
    detector: Annotated[
        Path | None,
        typer.Option(
            help="For faces: an SCRFD .onnx file with landmarks. The items are then photographs, "
            "not aligned crops. By default the detector of insightface:FOLDER is taken; for "
            "aligned crops name the recognition file, insightface:FOLDER/FILE.onnx.",
            **EXISTING,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="How many processes read files.")] = 0,
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that an .onnx or wespeaker: model was trained with."),
    ] = "wespeaker",
    crops: Annotated[
        int,
        typer.Option(
            min=0,
            help="For speech: embed so many evenly spaced crops and take their mean. 0 takes the "
            "whole recording.",
        ),
    ] = 0,
    crop_seconds: Annotated[float, typer.Option(help="The length of a crop in seconds.")] = 4.0,
    chunk_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="For speech: the longest chunk in seconds, such as 60, for recordings of hours. "
            "The "
            "embedding is the mean of the chunks. 0 takes the recording whole.",
        ),
    ] = 0.0,
    only_speech: Annotated[
        bool,
        typer.Option(
            "--only-speech", help="For speech: leave out pauses, which are found by their energy."
        ),
    ] = False,
) -> None:
    """Embed every item of a list, and write raw vectors with their norms.

    `likeness score` and other systems read them. A long list is embedded in parts, and the same
    command goes on where it was stopped. Several processes share the work when the command is
    started by torchrun: torchrun --nproc-per-node N -m likeness embed ...
    """
    from eval.formats import embeddings

    if bad_items not in ("skip", "refuse"):
        raise ValueError(f"--bad-items {bad_items!r}: must be skip or refuse")
    embeddings.check_suffix(out)
    if not out.parent.is_dir():  # before the work, not after it
        raise FileNotFoundError(f"{out}: there is no folder {out.parent}; make it first")
    if (items is None) == (ijb is None):
        raise ValueError("embed needs --items LIST or --ijb FOLDER, one of them")
    if ijb is not None and detector is not None:
        raise ValueError(
            "--detector finds faces in photographs, and --ijb aligns them by its own landmarks; "
            "leave one out"
        )
    refuse_missing_model(model)

    # These are slow to import, so that what can be refused without them is refused before.
    from likeness import extract
    from likeness.models import load
    from toolkit.data.batch import read_items
    from toolkit.models.embed import pick_device
    from toolkit.parallel import distributed

    listed = [] if items is None else read_items(items, root)
    if listed:
        embeddings.check_ids(out, [item.id for item in listed])
        refuse_missing_files([item.path for item in listed], allow_some=bad_items == "skip")
    # The faces of IJB are aligned by its landmarks, not by a detector.
    found_by: Path | Literal[False] | None = detector if ijb is None else False
    loaded = load.in_parts(
        load.load_to_embed(model, detector=found_by, frontend=frontend),
        crops=crops,
        crop_seconds=crop_seconds,
        chunk_seconds=chunk_seconds,
        only_speech=only_speech,
    )
    if ijb is not None:
        loaded, listed = extract.ijb_pack(loaded, ijb)
        embeddings.check_ids(out, [item.id for item in listed])
    loaded = extract.with_flip(loaded, flip)
    loaded.embedder.to(distributed.start() or pick_device())
    made = extract.extract(
        loaded, listed, out, batch_size=batch_size, workers=workers, progress=sys.stderr.isatty()
    )
    if made is None:  # another process than the first
        distributed.end()
        return
    found, bad = made
    for one in bad[:20]:
        say(one_line(f"skipped {one.id}: {one.reason}"), error=True)
    if len(bad) > 20:
        say(f"skipped {len(bad) - 20} more items; `embed` names the first 20", error=True)
    if bad and bad_items == "refuse":
        extract.finish(out)
        raise ValueError(
            f"{len(bad)} of {len(listed)} items cannot be read; nothing was written (--bad-items "
            "skip leaves them out)"
        )
    embeddings.write(out, found)
    extract.finish(out)
    distributed.end()
    say(
        f"{len(found.ids)} embeddings of {found.matrix.shape[1]} dimensions in {out}"
        + (f"; {len(bad)} unreadable items left out" if bad else "")
    )


@app.command(
    epilog="Examples: likeness verify a.wav b.wav --model runs/an4 --threshold 0.4; likeness "
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
            "wespeaker:FILE.pt, an .onnx file, or insightface:PATH, which is a recognition .onnx "
            "file or the folder of a pack such as buffalo_l. InsightFace's own weights are for "
            "non-commercial research only."
        ),
    ],
    detector: Annotated[
        Path | None,
        typer.Option(
            help="For faces: an SCRFD .onnx file with landmarks. A and B are then photographs, of "
            "which the largest face near the centre is aligned. By default the detector of "
            "insightface:FOLDER is taken; without one, as with insightface:FILE.onnx, A and B are "
            "aligned crops.",
            **EXISTING,
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="The score from which on both are taken for one subject.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="A calibration of `likeness score --calibrate` (default: RUN/calibration.json, if "
            "it exists).",
            **EXISTING,
        ),
    ] = None,
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that an .onnx or wespeaker: model was trained with."),
    ] = "wespeaker",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result into this JSON file.")
    ] = None,
) -> None:
    """Compare two files: are they of one subject?

    The command prints the score, the norms as a measure of quality, a decision where there is a
    threshold, and a probability where there is a calibration.
    """
    import json

    refuse_input_as_output(context, "json_file")
    refuse_missing_files([first, second])
    refuse_missing_model(model)

    # These are slow to import, so that what is missing has to be reported before.
    from eval.formats.files import atomic_path
    from likeness import verification
    from likeness.models import load
    from toolkit.models.embed import pick_device

    fitted = verification.find_calibration(model, calibration)
    loaded = load.load_to_embed(model, detector=detector, frontend=frontend)
    loaded.embedder.to(pick_device())
    if calibration is None:
        fitted = verification.unless_misfit(loaded, fitted, threshold=threshold, warn=_warn)
    found = verification.verify(loaded, first, second, threshold=threshold, calibration=fitted)
    if json_file:
        with atomic_path(json_file) as partial_path:
            document = {
                "schema": "likeness.verification/1",
                "files": [str(first), str(second)],
                **loaded.meta,
                **found._asdict(),
            }
            partial_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    say(found.text())


@app.command(epilog="Example: likeness export runs/an4 --onnx an4.onnx")
def export(
    model: Annotated[
        str,
        typer.Argument(
            help="The model: the folder of a run, a .safetensors checkpoint, speechbrain:SOURCE or "
            "wespeaker:FILE.pt."
        ),
    ],
    onnx: Annotated[
        Path,
        typer.Option(
            help="The .onnx file to write. It is a model itself, and all that other systems need."
        ),
    ],
    size: Annotated[
        str,
        typer.Option(
            metavar="HEIGHTxWIDTH",
            help="The size of the images, such as 112x112, where the model does not say it.",
        ),
    ] = "",
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that a wespeaker: model was trained with."),
    ] = "wespeaker",
) -> None:
    """Write front-end and network as one ONNX file.

    The file takes waves or images of any batch size and length, and gives raw embeddings. It is
    written only if it gives the same embeddings as torch.
    """
    from likeness.models import load
    from toolkit.models import export as exporting

    refuse_missing_model(model)
    height, cross, width = size.lower().partition("x")
    if size and not (
        cross and height.isdecimal() and width.isdecimal() and int(height) and int(width)
    ):
        raise ValueError(f"--size {size!r}: write HEIGHTxWIDTH in pixels, e.g. 112x112")
    loaded = load.load(model, frontend=frontend)
    found = exporting.export(loaded, onnx, size=(int(height), int(width)) if size else None)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {onnx}; on {found.num_items} inputs it "
        "agrees with torch to a cosine distance of "
        f"{found.distance:.1e} and norms to {found.norm_error:.1e}"
    )


@app.command(epilog="Example: likeness serve --model runs/an4 --gallery people --threshold 0.4")
def serve(
    model: Annotated[str, typer.Option(help="The model, as for `likeness verify`.")],
    gallery: Annotated[
        Path | None,
        typer.Option(
            help="The folder of enrolled subjects, which is made if it does not exist. Without one "
            "there is only /verify."
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. 0.0.0.0 lets other machines connect, which then need "
            "the token for everything."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8000,
    token: Annotated[
        str,
        typer.Option(
            envvar="LIKENESS_TOKEN",
            show_envvar=True,
            help="The token that is needed to enrol and remove. By default one is made and printed "
            "at the start.",
        ),
    ] = "",
    threshold: Annotated[
        float | None, typer.Option(help="The score from which on two are taken for one subject.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="A calibration of `likeness score --calibrate` (default: RUN/calibration.json, if "
            "it exists).",
            **EXISTING,
        ),
    ] = None,
    detector: Annotated[
        Path | None,
        typer.Option(
            help="For faces: an SCRFD .onnx file, so that photographs may be sent (default: the "
            "detector of insightface:FOLDER).",
            **EXISTING,
        ),
    ] = None,
    frontend: Annotated[
        Literal["wespeaker", "3dspeaker"],
        typer.Option(help="The filterbanks that an .onnx or wespeaker: model was trained with."),
    ] = "wespeaker",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A further host name that requests may ask for, such as that of a proxy. It may "
            "be given several times."
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="How many requests a second each client may send; 0 sets no limit."
        ),
    ] = 200.0,
    max_megabytes: Annotated[
        float, typer.Option(min=0.01, max=1024, help="The largest request in megabytes.")
    ] = 16.0,
    workers: Annotated[
        int,
        typer.Option(
            min=0,
            help="How many uploads are worked on at once; 0 takes as many as there are cores, at "
            "most 4.",
        ),
    ] = 0,
) -> None:
    """Serve a web page and a REST interface that compare two voices or photos.

    Both show score, probability and quality, and manage a gallery of enrolled subjects. Only this
    machine can connect, unless --host says otherwise.
    """
    import logging
    from importlib.util import find_spec

    needed = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
    if any(find_spec(name) is None for name in needed):
        raise ImportError(
            "likeness serve needs FastAPI, uvicorn, python-multipart and prometheus-client; run "
            "`pip install 'likeness[serve]'`"
        )
    from likeness.models import load
    from likeness.service import app as serving
    from likeness.service.limits import Limits
    from likeness.verification import find_calibration, unless_misfit
    from toolkit.models.embed import pick_device

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    fitted = find_calibration(model, calibration)
    loaded = load.load_to_embed(model, detector=detector, frontend=frontend)
    loaded.embedder.to(pick_device())
    if calibration is None:
        fitted = unless_misfit(loaded, fitted, threshold=threshold, warn=_warn)
    serving.serve(
        loaded,
        gallery=gallery,
        host=host,
        port=port,
        token=token,
        threshold=threshold,
        calibration=fitted,
        allow_hosts=allow_host or (),
        limits=Limits(
            max_bytes=round(max_megabytes * 2**20),
            rate=rate,
            workers=workers or min(4, os.cpu_count() or 1),
        ),
        say=say,
    )


def _warn(sentence: str) -> None:
    say(one_line(f"warning: {sentence}"), error=True)
