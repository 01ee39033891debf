"""Classification and retrieval: what a recipe's measure and its validation apply to a model, item
by item (likeness.eval.intervals.per_item).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.provenance import digest
from likeness.eval.formats.runs import find_model
from likeness.eval.intervals import per_item
from likeness.eval.intervals.per_item import PerItem
from likeness.eval.items.items import Item, Items, check_unique, label_numbers
from likeness.eval.metrics.classification import fit_temperature, softmax
from likeness.eval.metrics.diversity import cluster_diversity, feature_diversity
from likeness.eval.metrics.retrieval import clusters as find_clusters
from likeness.eval.metrics.retrieval import query_metrics
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.progress import track
from likeness.eval.reports.media import Source
from likeness.eval.types import Floats, Scores, Trials, counted, name_first
from likeness.toolkit.backbones.weights import put
from likeness.toolkit.data.reading import Read
from likeness.toolkit.losses.contract import Classifier, Probabilistic
from likeness.toolkit.losses.vmf import VMF
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embedder import TorchEmbedder, in_torch, pick_device
from likeness.toolkit.models.loaded import Flip, Loaded, ReadParts, flipped
from likeness.toolkit.models.parts import Part, drop_weights
from likeness.toolkit.parallel.distributed import embed_all
from likeness.toolkit.training.listed import Data, list_by
from likeness.toolkit.training.recipe import (
    Classification,
    ItemMeasure,
    Measure,
    Recipe,
    Retrieval,
    fit_to_data,
)
from likeness.toolkit.vmf.rows import unit
from likeness.toolkit.vmf.sampling import sample

TEST = "test.npz"  # what a run's test measured, in its folder
_SEED = 0  # of what a test draws: equal for every model

# Embeddings by a digest of the weights and items that they are of.
Embedded = dict[str, Embeddings]


class Model(NamedTuple):
    """A trained model with what tests need.

    Attributes:
        embedder: The network.
        loss: Its loss, whose class vectors predict; None for one that is measured on trials.
        classes: (C,), in the order of the loss's labels.
        read: Gives an item's input.
        similarity: How its embeddings are compared.
        workers: The number of processes that read.
        embedded: What weights of the same recipe have embedded, which is not read again, and gets
            what this model embeds; None keeps nothing.
        meta: What embeddings of a model file carry along.
    """

    embedder: TorchEmbedder
    loss: nn.Module | None
    classes: Sequence[str]
    read: Read | ReadParts
    similarity: str
    workers: int = 0
    embedded: Embedded | None = None
    meta: Mapping[str, str] = MappingProxyType({})

    def embed(self, items: Sequence[Item]) -> Floats:
        """(N, D) raw embeddings.

        All processes share the work and get the same rows. ValueError counts the items that cannot
        be read.
        """
        return self.embeddings(items).matrix.astype(np.float64)

    def score(self, trials: tuple[Sequence[Item], Trials], flip: Flip) -> Scores:
        """The scores of labelled trials among items; all processes share the work."""
        items, pairs = trials
        assert pairs.target is not None
        values = score_trials(pairs, self.embeddings(items, flip), similarity=self.similarity)
        return Scores(values, pairs.target)

    def embeddings(self, items: Sequence[Item], flip: Flip = "none") -> Embeddings:
        """The embeddings of items, with those of flipped images where `flip` says so."""
        if self.embedded is None:
            return self._embed(items, flip)
        names = (f"{item.id}\0{item.name}" for item in items)
        key = digest([_digest(self.embedder), flip, *names])
        if key not in self.embedded:
            self.embedded[key] = self._embed(items, flip)
        return self.embedded[key]

    def _embed(self, items: Sequence[Item], flip: Flip) -> Embeddings:
        embedder = self.embedder if flip == "none" else flipped(self.embedder, flip)
        return embed_all(embedder, items, self.read, what="test", workers=self.workers)


def _digest(embedder: nn.Module) -> str:
    """The SHA-256 of all weights and buffers by their names."""
    checksum = hashlib.sha256()
    for name, value in sorted(embedder.state_dict().items()):
        checksum.update(name.encode() + b"\0")
        checksum.update(value.cpu().reshape(-1).view(torch.uint8).numpy())
    return checksum.hexdigest()


def load_model(path: Path, recipe: Recipe, embedded: Embedded | None = None) -> Model:
    """The model that a run of `recipe` left in its folder or file, made of the recipe's own parts,
    with the loss of a recipe that measures items.

    Args:
        path: The folder or file.
        recipe: The recipe of the run.
        embedded: As in `Model`.

    Raises:
        LikenessError: The file is no checkpoint, or its weights are not those of the recipe's
            network. It holds no loss, or another one.
    """
    path = find_model(path)
    tensors, stated, digest = checkpoint.read(path, checkpoint.FORMAT)
    # training started from a file of weights; what became of it is in the checkpoint
    backbone, frontend = drop_weights(recipe.backbone), recipe.frontend()
    network = TorchEmbedder(frontend, backbone(frontend.dim), features=stated["features"])
    put(network, checkpoint.embedder_tensors(tensors), str(path))
    similarity, step = stated["similarity"], int(stated["step"])
    is_quality = checkpoint.norm_is_quality(stated["recipe"]["loss"], similarity)
    parts = network.eval(), recipe.read, recipe.modality
    loaded = Loaded(*parts, similarity, digest, step, norm_is_quality=is_quality)
    embedder = in_torch(loaded).to(pick_device())
    loss: nn.Module | None = None
    classes: list[str] = []
    if isinstance(recipe.measure, ItemMeasure):
        loss, classes = checkpoint.load_loss(path, recipe.loss, cast(int, embedder.backbone.dim))
        loss.to(pick_device())
    workers, read = recipe.compute.workers, recipe.read
    return Model(embedder, loss, classes, read, similarity, workers, embedded, loaded.meta)


def metrics_of(
    metrics: Mapping[str, Part], measured: PerItem | Scores, *, only: str = ""
) -> dict[str, float]:
    """The metrics of a recipe, or one of them, of what its measure or validation measured.

    Args:
        metrics: Functions of scores or of columns, by name.
        measured: The scores of its trials, or a value of each item in each column.
        only: The name of the metric that is computed, "" for all of them.

    Raises:
        LikenessError: A metric needs a column that was not measured.
    """
    arguments: tuple[Any, ...]
    if isinstance(measured, Scores):
        arguments = measured.targets, measured.nontargets
    else:
        arguments = (measured.columns,)
    try:
        return {
            name: float(metric(*arguments))
            for name, metric in metrics.items()
            if only in ("", name)
        }
    except KeyError as error:
        if isinstance(measured, Scores):
            raise
        raise LikenessError(
            f"a metric needs the column {error}, but measured are {', '.join(measured.columns)}; "
            "give measure and its validation what it takes (calibrate_on, clusters, ks)"
        ) from None


def settings_of(measure: Measure | None) -> list[ItemMeasure]:
    """The classifications or retrievals of a recipe's measure: its validation, where it has one,
    and itself; none for trials.
    """
    if not isinstance(measure, ItemMeasure):
        return []
    validation: ItemMeasure | None = measure.validation
    return [measure] if validation is None else [validation, measure]


def items_of(
    settings: ItemMeasure, data: Data, classes: Sequence[str], trained: Items
) -> list[Items]:
    """The items that a classification or retrieval takes, those to calibrate on included.

    Before training on items of `classes` it refuses what would be refused after hours of it:
    missing or damaged split files, and labels; and items of a classification that are trained on.

    Raises:
        LikenessError: One of these.
    """
    listed = [Items.of(list_by(settings.items, data))]
    if isinstance(settings, Classification) and settings.calibrate_on is not None:
        listed.append(Items.of(list_by(settings.calibrate_on, data)))
    for items in listed:
        check_unique(items, "test items")
        if isinstance(settings, Classification):
            _numbers(items, classes)
            tested = {item.id: (item.path, item.span) for item in items}
            rows = [row for row, id in enumerate(trained.each_id()) if id in tested]
            alike = map(trained.__getitem__, rows)  # files of two folders may have equal ids
            if both := [item.id for item in alike if tested[item.id] == (item.path, item.span)]:
                raise LikenessError(
                    f"{name_first(both)}: {counted(len(both), 'item')} both trained and tested on; "
                    "set the shares and the seed of the split alike in items and all of measure"
                )
        elif settings.disjoint:
            refuse_trained(label_numbers(items)[0], classes)
    return listed


def refuse_trained(labels: Iterable[str], classes: Iterable[str]) -> None:
    """Refuse labels that are tested on and are among the classes that are trained on."""
    if both := {*labels} & {*classes}:
        raise LikenessError(
            f"{min(both)!r} is both trained and tested on; take it out of one of them: the items "
            "of a recipe and those of its measure are of disjoint classes"
        )


def measure_items(model: Model, data: Data, settings: ItemMeasure) -> PerItem:
    """Measure a model by classification or retrieval, whichever the settings are of."""
    if isinstance(settings, Classification):
        return classification(model, data, settings)
    return retrieval(model, data, settings)


def classification(model: Model, data: Data, settings: Classification) -> PerItem:
    """Measure closed-set classification, where the labels of the items are training classes.

    Probabilities are those of the loss, without any margin: its posterior(z) where it has one,
    otherwise softmax(logits(z)). The posterior of VMF is the Monte-Carlo mean over draws of z and
    of the class vectors (vMF paper, Sec. 2.3).

    Args:
        model: The trained model, whose loss has class vectors.
        data: The folder of the data set.
        settings: The items. Where `calibrate_on` lists further items, which the model was not
            trained on, a temperature is fitted on them (Guo et al. 2017): to the log posterior
            where there is one.

    Returns:
        The columns correct, confidence (of the predicted class), norm, label and predicted; with
        `calibrate_on` also scaled_confidence and temperature. The temperature is 1 where none
        helps, for instance because every held-out item is right. Each item is a group.

    Raises:
        LikenessError: Labels are no training classes, or the loss has no class vectors.
    """
    tested = Items.of(list_by(settings.items, data))
    labels = _numbers(tested, model.classes)
    z = model.embed(tested)
    logits = _logits(model, z)
    predicted = logits.argmax(axis=1)
    columns = {
        "correct": (predicted == labels).astype(np.float64),
        "confidence": softmax(logits).max(axis=1),
        "norm": np.linalg.norm(z, axis=1),
        "label": labels.astype(np.float64),
        "predicted": predicted.astype(np.float64),
    }
    if settings.calibrate_on is not None:
        held_out = Items.of(list_by(settings.calibrate_on, data))
        held_out_logits = _logits(model, model.embed(held_out))
        try:
            temperature = fit_temperature(held_out_logits, _numbers(held_out, model.classes))
        except ValueError:
            temperature = 1.0
        columns |= {
            "scaled_confidence": softmax(logits, temperature).max(axis=1),
            "temperature": np.full(len(tested), temperature),
        }
    return _per_item(model, tested, columns, None, "items", z, model.classes)


def retrieval(model: Model, data: Data, settings: Retrieval) -> PerItem:
    """Measure retrieval, where each item searches all others.

    With num_samples = S > 0, embeddings that are distributions (VMF) get the expected metrics of
    the vMF paper, Sec. 3.2: the mean over S draws of every embedding from vMF(z/|z|, |alpha z|),
    compared by the cosine. The embeddings of other losses are points and are measured as with
    S = 0, so that all variants share one test.

    Args:
        model: The trained model.
        data: The folder of the data set.
        settings: The items, and how they are searched. `similarity` "" takes the model's.

    Returns:
        The columns recall@K, precision@1, r_precision, map@r and map@1000
        (likeness.eval.metrics.retrieval; NaN for a query alone in its class), norm and label.
        `compat` adds what a tool has for the last two, such as map@1000(rdml).
        `clusters` adds cluster, the cluster of each item by k-means with as many clusters as
        classes, for the NMI. `diversity` adds (nivMF paper, Supp. L) feature_diversity, which
        belongs to all items together, so that its interval has no width; and cluster_diversity,
        which stands on the first item of each class and is NaN elsewhere, so that per_item.mean is
        the mean over classes. Each class is a group.

    Raises:
        LikenessError: Draws are to be compared by another similarity than the cosine.
    """
    drawn = isinstance(model.loss, VMF) and settings.num_samples > 0
    if drawn and settings.similarity not in ("", "cosine"):
        raise LikenessError(
            f"similarity is {settings.similarity!r}, but draws are unit vectors and are compared "
            "by cosine; leave it out, or set num_samples to 0"
        )
    compared = "cosine" if drawn else settings.similarity or model.similarity
    tested = Items.of(list_by(settings.items, data))
    names, labels = label_numbers(tested)
    z = model.embed(tested)
    columns: dict[str, Floats] = {}
    draws = _draws(model.loss, z, settings.num_samples) if drawn else [z]
    for rows in track(draws, "retrieving", total=settings.num_samples if drawn else None):
        values = query_metrics(rows, labels, ks=settings.ks, similarity=compared)
        if tool := settings.compat:
            theirs = query_metrics(rows, labels, similarity=compared, compat=tool)
            values |= {f"{name}({tool})": theirs[name] for name in ("map@r", "map@1000")}
        for name, value in values.items():
            columns[name] = columns.get(name, 0.0) + value / (settings.num_samples if drawn else 1)
    columns |= {"norm": np.linalg.norm(z, axis=1), "label": labels.astype(np.float64)}
    if settings.clusters:
        columns["cluster"] = find_clusters(z, len(names), seed=_SEED).astype(np.float64)
    if settings.diversity:
        columns["feature_diversity"] = np.full(len(tested), feature_diversity(z))
        columns["cluster_diversity"] = np.full(len(tested), np.nan)
        # one value a class, on its first item: their mean is likeness.eval.metrics.diversity's
        for number in np.flatnonzero(np.bincount(labels) >= 3):
            members = np.flatnonzero(labels == number)
            columns["cluster_diversity"][members[0]] = cluster_diversity(
                z[members], labels[members]
            )
    return _per_item(model, tested, columns, labels.astype(np.int32), "classes", z, names)


def run_test(recipe: Recipe, out: Path, data: Data, embedded: Embedded | None = None) -> PerItem:
    """Apply the recipe's measure, a classification or retrieval, to the model in `out`, a finished
    run, and keep what it measured as out/test.npz. `embedded` is as in `Model`.
    """
    assert isinstance(recipe.measure, ItemMeasure)
    model = load_model(out, fit_to_data(recipe, data), embedded)
    measured = measure_items(model, data, recipe.measure)
    per_item.write(out / TEST, measured)
    return measured


def _per_item(
    model: Model,
    items: Items,
    columns: dict[str, Floats],
    groups: NDArray[np.int32] | None,
    over: str,
    z: Floats,
    classes: Sequence[str],
) -> PerItem:
    """With what a report shows of the items."""
    ids = tuple(items.ids)
    where = {id: place for place, id in enumerate(ids)}

    def show(id: str) -> Source:
        if id not in where:
            return None
        item = items[where[id]]
        if item.span is None:
            return item
        pixels = model.read(item)
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
            return None
        levels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
        return levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0))

    return PerItem(ids, columns, groups, over, embeddings=z, classes=tuple(classes), show=show)


@torch.no_grad()
def _logits(model: Model, z: Floats) -> Floats:
    """(N, C) logits, or the log of the posterior where the loss has one, in float64."""
    if not isinstance(model.loss, Classifier):
        raise LikenessError(
            f"classification: {type(model.loss).__name__} has no class vectors to predict by; "
            "measure retrieval instead"
        )
    loss: Any = model.loss
    device = next(loss.parameters()).device
    was_training = loss.training
    loss.eval()
    rows = torch.from_numpy(z).float().to(device)
    try:
        logits = (
            loss.posterior(rows, generator=_generator(device)).clamp(min=1e-30).log()
            if isinstance(loss, Probabilistic)
            else loss.logits(rows)
        )
    finally:
        loss.train(was_training)
    return np.asarray(logits.double().cpu())


def _draws(loss: Any, z: Floats, num_samples: int) -> Iterator[Floats]:
    """num_samples times (N, D) unit vectors, one draw of each embedding; one after the other, which
    bounds the memory.
    """
    nu = torch.from_numpy(z) * float(loss.alpha)
    mu, kappa, generator = unit(nu), nu.norm(dim=1), _generator(nu.device)
    for _ in range(num_samples):
        yield sample(mu, kappa, 1, generator=generator)[0].numpy()


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(_SEED)


def _numbers(items: Items, classes: Sequence[str]) -> NDArray[np.int64]:
    """(N,) the places of the items' labels among the classes."""
    names, numbers = label_numbers(items)
    if unknown := sorted({*names} - {*classes}):
        raise LikenessError(
            f"the label {unknown[0]!r} of test items is none that the model was trained on; test "
            "its own classes"
        )
    place_of = {name: place for place, name in enumerate(classes)}
    return np.array([place_of[name] for name in names], dtype=np.int64)[numbers]
