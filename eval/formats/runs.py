"""The folder of a training run: its model files, and what it left of its held-out items."""

from __future__ import annotations

from pathlib import Path

from likeness.eval.errors import LikenessError


class HeldOutFiles:
    """Where a run keeps what it left of its held-out items.

    Attributes:
        run: The folder of the run.
        folder: The folder of all files.
        embeddings: The raw embeddings of the items.
        trials: The trials with their labels.
        scores: The scores of the trials. What gave them stands beside, so that thresholds know it.
        labels: Lines `id label`, where the items have labels.
        items: Lines `id path`, unless items lie in tar shards.

    Example:
        >>> HeldOutFiles(Path("runs/voices")).scores.as_posix()
        'runs/voices/held-out/scores.txt'
    """

    def __init__(self, run: Path):
        self.run = run
        self.folder = run / "held-out"
        self.embeddings = self.folder / "embeddings.npz"
        self.trials = self.folder / "trials.txt"
        self.scores = self.folder / "scores.txt"
        self.labels = self.folder / "labels.txt"
        self.items = self.folder / "items.txt"


BEST = "best.safetensors"  # the model files of a run
LAST = "last.safetensors"
EXPORTED = "model.onnx"  # in the folder of a model that no run trained
RECIPE, LOG = "recipe.json", "log.jsonl"
CALIBRATION, THRESHOLDS = "calibration.json", "thresholds.json"  # in the folder, or beside a file


def files_of_model(model: Path) -> list[Path]:
    """The files of a model that commands read: in the folder of a run, or beside a model of one
    file.
    """
    if not model.is_dir():
        return [Path(f"{model}.{name}") for name in (CALIBRATION, THRESHOLDS)]
    own = (BEST, LAST, EXPORTED, RECIPE, LOG, CALIBRATION, THRESHOLDS)
    return [*(model / name for name in own), *vars(HeldOutFiles(model)).values()]


def find_model(path: Path) -> Path:
    """Return the model file that a path means: itself, or the best or last of a run's folder.

    In a folder that no run made it is the exported model.
    """
    if path.is_dir():
        for name in (BEST, LAST, EXPORTED):
            if (path / name).is_file():
                return path / name
    if not path.is_file():
        what = f"holds no checkpoint ({BEST} or {LAST})" if path.is_dir() else "does not exist"
        raise LikenessError(f"model {str(path)!r} {what}; give a run or a .safetensors file")
    return path
