"""`likeness align`: crops of faces from photographs. modalities/face/align.py does the work."""

from likeness.commands._signature import Call, command
from likeness.eval.types import counted
from likeness.modalities.face.align import Aligned, align_folder
from likeness.toolkit.console import say


@command(
    align_folder,
    resumes=True,
    epilog="Example: likeness align photographs --out crops --detector yunet.onnx",
)
def align(aligned_by: Call[Aligned]) -> None:
    """Find the faces in photographs, and write them as crops that face networks take.

    The same command goes on where it was stopped: crops stay while their photographs are what they
    were, and what failed is tried again. OUT/failures.tsv lists photographs without a face or that
    cannot be read, and OUT/several.tsv those with several faces.
    """
    aligned, out = aligned_by(), aligned_by["--out"]
    say(f"{counted(len(aligned.done), 'crop')} in {out}")
    if aligned.changed:
        say(f"aligned again, since they changed: {counted(len(aligned.changed), 'photograph')}")
    if aligned.gone:
        say(f"no longer there: {counted(len(aligned.gone), 'photograph')}; the crops stay in {out}")
    for what, files, name in (
        ("with several faces", aligned.several, "several.tsv"),
        ("failed", aligned.failures, "failures.tsv"),
    ):
        if files:
            say(f"{what}: {counted(len(files), 'image')}, see {out / name}")
