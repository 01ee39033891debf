"""`likeness align`: crops of faces from photographs. modalities/face/align.py does the work."""

from likeness.commands._signature import Call, command
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
    say(f"{len(aligned.done)} crops in {out}")
    if aligned.changed:
        say(f"{len(aligned.changed)} photographs were aligned again, as they changed since")
    if aligned.gone:
        say(f"{len(aligned.gone)} photographs are no longer there; their crops stay in {out}")
    if aligned.several:
        say(f"{len(aligned.several)} images have several faces, see {out / 'several.tsv'}")
    if aligned.failures:
        say(f"{len(aligned.failures)} images failed, see {out / 'failures.tsv'}")
