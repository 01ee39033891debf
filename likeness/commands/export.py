"""`likeness export`: a model becomes one file for other systems.

likeness/models/exporting.py writes the .onnx file, join.py a model with a head
or another model.
"""

from likeness.commands._signature import Call, command
from likeness.models.exporting import export as export_file
from likeness.models.join import join
from likeness.models.model import Model
from likeness.toolkit.console import say


@command(
    export_file,
    join,
    epilog="Examples: likeness export runs/an4 --out an4.onnx; likeness export runs/an4 --beside "
    "likeness:voice --fusion fusion.json --out both",
)
def export(exported_by: Call[None], joined_by: Call[Model]) -> None:
    """Write a model as one file for other systems, or a model and a head, or two models
    whose scores are summed, as one model.

    The file takes waves or images of any batch size and length, and gives raw embeddings. It is
    written only if it gives the same embeddings as torch. With a smaller --precision they differ,
    and the command says by how much.
    """
    if "--head" not in joined_by and "--beside" not in joined_by:
        joined_by.refuse_idle("without --beside", "--fusion")
        exported_by()
        return
    joined_by.refuse_others()
    # What must not be replaced was refused before.
    joined, out = joined_by(head=joined_by["--head"], replaces=True), joined_by["--out"]
    say(f"joined model of {joined.dim} dimensions, scored by {joined.similarity}, in {out}")
    if "--beside" in joined_by:
        calibrated = "its calibration is that of the fusion; " if joined.calibration else ""
        say(
            f"{calibrated}stored thresholds of either model do not hold for it: score with it, and "
            f"store its own by `likeness evaluate SCORES --save-to {out}`"
        )
