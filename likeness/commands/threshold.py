"""`likeness threshold`: a threshold for a new place from its unlabelled recordings or images."""

import shlex

from likeness.commands._signature import Call, command
from likeness.eval.scoring.thresholds import Thresholds
from likeness.models.bundled import model_of_data
from likeness.models.model import Model, load
from likeness.toolkit.console import say


@command(
    load,
    Model.estimate_thresholds,
    calls_all=True,
    optional=("--model",),
    without=("--thresholds", "--calibration"),
    epilog="Example: likeness threshold --unlabelled lobby/ --far 0.01 --out lobby.json",
)
def threshold(loaded_by: Call[Model], estimated_by: Call[Thresholds]) -> None:
    """Estimate a threshold for a new place from its files, without knowing who is in them.

    The mean of the place's embeddings is subtracted from all others from then on. The files are of
    the people who will be compared there.
    """
    model, typed = loaded_by["--model"], loaded_by.words()
    if model is None:
        model = model_of_data(estimated_by["--unlabelled"], root=estimated_by["--root"])
        typed = ["--model", model, *typed]
    estimated = estimated_by(loaded_by(model=model))
    for point in estimated.points:
        say(f"threshold {point.value:.4g} at {estimated.source(point)}")
    say("the rate of errors here is not known; labelled trials of the place would measure it")
    typed += ["--far", f"{estimated.points[0].far:g}", "--thresholds", str(estimated_by["--out"])]
    say(f"decide by it: likeness verify A B {shlex.join(typed)}")
