"""What a training run leaves of its held-out items: embeddings, trials, scores and labels.

They are files that the other commands take, so that a threshold and a report follow from a run
without another list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from likeness.eval.errors import LikenessError

if TYPE_CHECKING:
    from likeness.eval.intervals.per_item import PerItem
    from likeness.eval.items.items import Items
    from likeness.eval.scoring.score import Scored
    from likeness.eval.types import Embeddings, Trials
    from likeness.toolkit.training.recipe import Recipe

NUM_TRIALS = 20_000  # at most, where the recipe has none


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


@dataclass(frozen=True)
class HeldOut:
    """The items that a run was measured on, as its model sees them.

    Attributes:
        items: N items, with labels where the recipe lists them.
        embeddings: Their raw embeddings (N, D), which name the model.
        scored: P labelled trials among them, with their scores.
    """

    items: Items
    embeddings: Embeddings
    scored: Scored


def measure_held_out(
    recipe: Recipe, run: Path, data: Path, *, measured: PerItem | None = None
) -> HeldOut | None:
    """Embed the items that a run was measured on, and score trials among them.

    Args:
        recipe: The recipe of the run.
        run: The folder of the finished run.
        data: The data set that it was trained on.
        measured: What the run's test measured, where it has been: its embeddings are taken.

    Returns:
        The items, the embeddings and the scores. The trials are the recipe's own, or for retrieval
        a draw of at most 20,000 among its test items. None for a recipe that is measured otherwise,
        and where no such draw has target and nontarget trials.

    Raises:
        LikenessError: Items cannot be read.
    """
    from likeness.eval.items.items import Items
    from likeness.eval.scoring.score import score
    from likeness.eval.types import Embeddings
    from likeness.scoring import named
    from likeness.toolkit.parallel.distributed import embed_all
    from likeness.toolkit.training.measure import load_embedder
    from likeness.toolkit.training.recipe import Retrieval, Verification, of_data

    if isinstance(recipe.measure, Verification):
        listed, trials = recipe.measure.trials(data)
        items = Items.of(listed)
    elif isinstance(recipe.measure, Retrieval):
        items = Items.of(recipe.measure.items(data))
        drawn = _draw(items)
        if drawn is None:
            return None
        trials = drawn
    else:
        return None
    chosen = replace(recipe, frontend=of_data(recipe.frontend, data))
    loaded = load_embedder(run, chosen)
    if measured is not None and measured.embeddings is not None and measured.ids == (*items.ids,):
        matrix = measured.embeddings.astype("float32")
    else:
        loaded.embedder.to_device()
        workers = recipe.compute.workers
        matrix = embed_all(
            loaded.embedder, items, loaded.read, what="held-out", workers=workers
        ).matrix
    embeddings = Embeddings(tuple(items.ids), matrix, loaded.meta)
    scored = score(trials, embeddings)
    return HeldOut(items, embeddings, named(scored, f"held-out trials of {data}"))


def _draw(items: Items) -> Trials | None:
    """Trials among items, of both kinds; None where there are not both."""
    import numpy as np

    from likeness.eval.items.items import label_numbers
    from likeness.eval.items.pairs import draw_pairs

    num_labels = len(label_numbers(items)[0])
    if num_labels < 2 or num_labels == len(items):
        return None
    return draw_pairs(items, NUM_TRIALS, np.random.default_rng(0))


def write_held_out(run: Path, held_out: HeldOut) -> None:
    """Write the files of held-out items, in place of those of an earlier model.

    Args:
        run: The folder of the run.
        held_out: The items, the embeddings and the scores.

    Raises:
        LikenessError: An id has characters that no list can hold.
        OSError: The disk refuses it.
    """
    from likeness.checking.lists import write_labels
    from likeness.eval.formats import embeddings
    from likeness.eval.formats.trials import write_trials
    from likeness.eval.formats.writing import remove
    from likeness.eval.items.item_lists import write_items

    files, items = HeldOutFiles(run), held_out.items
    files.folder.mkdir(parents=True, exist_ok=True)
    embeddings.write(files.embeddings, held_out.embeddings)
    write_trials(files.trials, held_out.scored.trials)
    if all(label is not None for label in items.labels):
        write_labels(files.labels, items)
    else:
        remove(files.labels)
    if all(item.span is None for item in items):
        write_items(files.items, [item._replace(path=item.path.absolute()) for item in items])
    else:
        remove(files.items)
    held_out.scored.save(files.scores)


def run_of_scores(scores: object) -> HeldOutFiles | None:
    """The files of the run whose folder stands in place of scores, if one does.

    Raises:
        LikenessError: The folder stands beside other scores, or holds no scores, or those of an
            earlier model: a run that was trained further has a new model before its held-out items
            are scored again.
    """
    listed = scores if isinstance(scores, Sequence) and not isinstance(scores, str) else [scores]
    folders = [of for of in listed if isinstance(of, str | PathLike) and Path(of).is_dir()]
    if not folders:
        return None
    from likeness.eval.formats.provenance import sha256
    from likeness.eval.scoring.origin import read_origin
    from likeness.toolkit.models.loaded import find_model

    files = HeldOutFiles(Path(folders[0]))
    if len(listed) > 1 or not files.scores.is_file():
        raise LikenessError(
            f"{files.run} is a folder, which stands for one run alone and its {files.scores}; "
            "`likeness train` leaves that for recipes that hold subjects out: name score files"
        )
    origin = read_origin(files.scores)
    model = find_model(files.run)
    if origin is not None and origin.model not in ("", sha256(model)):
        raise LikenessError(
            f"{files.scores} has scores of an earlier model than {model}; finish the training with "
            "`likeness train --resume`, which scores the held-out items anew, or name the score "
            "file itself to measure the earlier model"
        )
    return files
