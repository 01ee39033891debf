"""Classification and retrieval of a trained model, re-derived item by item; comparison and tuning
on them, end to end on scikit-learn's digits.
"""

import copy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch

from likeness.data import Item, small_sets
from likeness.eval.items.items import Items
from likeness.eval.types import Trials
from likeness.losses import VMF, Softmax, Triplet
from likeness.metrics import balanced_accuracy, per_item, query_metrics
from likeness.models.run import load_model as load_embedder
from likeness.toolkit.backbones.image_resnet import SmallCNN
from likeness.toolkit.data.pixels import PixelScale
from likeness.toolkit.data.sampling import Sampling
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.training import compare, measure
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.measure import Model, classification, metrics_of, retrieval, run_test
from likeness.toolkit.training.recipe import Classification, Recipe, Retrieval, Schedule
from likeness.toolkit.training.schedules import constant
from likeness.toolkit.training.search import Range
from likeness.toolkit.training.train import fit
from likeness.toolkit.vmf.rows import unit
from likeness.toolkit.vmf.sampling import sample

ROOT = Path(__file__).parents[3]
NOWHERE = Path("digits-are-in-scikit-learn")
HELD_OUT = partial(small_sets.digits_items, split="validation", validation_share=0.2)
ACCURACY, MAP_AT_R = (partial(per_item.mean, column=name) for name in ("correct", "map@r"))
WATCHED: dict[str, Any] = {"eval_every": 10, "watch": "accuracy", "higher_is_better": True}
CLOSED = Recipe(
    modality="image",
    frontend=partial(PixelScale),
    backbone=partial(SmallCNN, dim=3, image_size=8),
    loss=partial(Softmax),
    items=partial(small_sets.digits_items, split="train", validation_share=0.2),
    measure=Classification(
        items=partial(small_sets.digits_items, split="test"),
        calibrate_on=HELD_OUT,
        validation=Classification(items=HELD_OUT),
        metrics={"accuracy": ACCURACY, "auroc": per_item.norm_auroc},
    ),
    read=small_sets.read,
    sampling=Sampling(batch_size=50, items_per_class=5),
    optim=recipes.Optim(name="adamw", lr=0.01, weight_decay=0.0),
    schedule=Schedule(steps=40, decay=constant, save_every=40, **WATCHED),
    estimate_views=1,
    compute=recipes.Compute(threads=1, cache=True),
)
OPEN = replace(
    CLOSED,
    backbone=partial(SmallCNN, dim=8, image_size=8),
    items=partial(small_sets.digits_items, split="train", protocol="open"),
    measure=Retrieval(
        items=partial(small_sets.digits_items, split="test", protocol="open"),
        clusters=True,
        metrics={"map@r": MAP_AT_R, "nmi": per_item.mutual_information},
    ),
    sampling=Sampling(batch_size=30, items_per_class=5),
    schedule=Schedule(steps=30, decay=constant, save_every=30),
)


def some(data: Path, *, labels: dict[str, int], split: Any = "all") -> list[Item]:
    """So many of the first digits of each label."""
    every = small_sets.digits_items(data, split=split)
    of_label = {label: [item for item in every if item.label == label] for label in labels}
    return [item for label, number in labels.items() for item in of_label[label][:number]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """name -> a finished run of that recipe, trained once."""
    made = {
        "softmax": CLOSED,
        "vmf": replace(CLOSED, loss=partial(VMF)),
        "open": replace(OPEN, similarity="euclidean"),
        "open_vmf": replace(OPEN, loss=partial(VMF, resultant=0.7)),
    }
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def get(name: str) -> tuple[Recipe, Path]:
        fit(made[name], data=NOWHERE, out=folder / name)
        return made[name], folder / name

    return get


def embedded(model: Model, items: list[Item]) -> np.ndarray:
    """Embeddings of items, one by one."""
    images = [torch.from_numpy(small_sets.read(item))[None] for item in items]
    with torch.no_grad():
        return torch.cat([model.embedder(image) for image in images]).double().numpy()


def numbers(items: list[Item]) -> np.ndarray:
    return np.array([int(str(item.label)) for item in items])


def test_classification_item_by_item(trained):
    recipe, out = trained("softmax")
    model = measure.load_model(out, recipe)
    measured = run_test(recipe, out, NOWHERE)
    proxies = model.loss.state_dict()["proxies"].double().numpy()
    assert list(model.classes) == list("0123456789")
    tested, held_out = small_sets.digits_items(split="test"), HELD_OUT(NOWHERE)
    z, known = embedded(model, tested), embedded(model, held_out) @ proxies.T
    logits, labels = z @ proxies.T, numbers(tested)

    def likelihood(temperature: float) -> float:
        every = scipy.special.log_softmax(known / temperature, axis=1)
        return -float(every[np.arange(len(known)), numbers(held_out)].sum())

    (temperature,) = set(measured.columns["temperature"])
    assert all(likelihood(temperature) < likelihood(temperature * by) for by in (0.97, 1.03))
    assert measured.ids == tuple(item.id for item in tested)
    expected = {
        "label": labels,
        "predicted": logits.argmax(axis=1),
        "correct": logits.argmax(axis=1) == labels,
        "confidence": scipy.special.softmax(logits, axis=1).max(axis=1),
        "scaled_confidence": scipy.special.softmax(logits / temperature, axis=1).max(axis=1),
        "norm": np.linalg.norm(z, axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(measured.columns[name], values, rtol=2e-5, err_msg=name)
    assert 0.3 < measured.columns["correct"].mean() < 1
    kept = per_item.read(out / measure.TEST)
    assert kept.digest == measured.digest
    assert metrics_of(recipe.metrics, kept) == metrics_of(recipe.metrics, measured)
    assert measured.num_groups == len(tested)


def test_what_vmf_predicts_is_its_posterior(trained):
    """The posterior is verified in tests/toolkit/losses; here, its draws are others."""
    recipe, out = trained("vmf")
    model = measure.load_model(out, recipe)
    model.loss.num_samples = 1500
    few = partial(some, labels={"3": 3, "8": 3}, split="test")
    result = classification(model, NOWHERE, Classification(items=few)).columns
    z = embedded(model, few(NOWHERE))
    with torch.no_grad():
        posterior = model.loss.posterior(torch.from_numpy(z).float(), num_samples=10_000).numpy()
    best, predicted = posterior.max(axis=1), result["predicted"].astype(int)
    np.testing.assert_allclose(result["confidence"], best, atol=0.06)
    assert (posterior[np.arange(len(z)), predicted] > best - 0.06).all()
    # of the raw embedding, without alpha
    np.testing.assert_allclose(result["norm"], np.linalg.norm(z, axis=1), rtol=1e-5)


def test_temperature_is_1_where_none_helps(trained):
    recipe, out = trained("softmax")
    hits = run_test(recipe, out, NOWHERE).columns["correct"]
    tested = zip(small_sets.digits_items(split="test"), hits, strict=True)
    right = [item for item, hit in tested if hit]
    settings = Classification(partial(some, labels={"1": 5}), calibrate_on=lambda _: right)
    columns = classification(measure.load_model(out, recipe), NOWHERE, settings).columns
    assert set(columns["temperature"]) == {1.0}
    np.testing.assert_array_equal(columns["scaled_confidence"], columns["confidence"])


@pytest.mark.parametrize("similarity", ["euclidean", "cosine"])
def test_retrieval_query_by_query(similarity, trained):
    recipe, out = trained("open")
    model = measure.load_model(out, recipe)
    assert model.similarity == "euclidean"
    few = partial(some, labels={"6": 12, "7": 9, "9": 1, "8": 6})
    settings = Retrieval(items=few, ks=(1, 3), clusters=True, compat="rdml")
    compared = model._replace(similarity=similarity)
    measured = retrieval(compared, NOWHERE, settings)
    # embeddings that are points are their own expectation
    other = retrieval(compared, NOWHERE, replace(settings, num_samples=7))
    np.testing.assert_equal(dict(other.columns), dict(measured.columns))
    own, of_dots = replace(settings, similarity=similarity), model._replace(similarity="dot")
    other = retrieval(of_dots, NOWHERE, own)
    np.testing.assert_equal(dict(other.columns), dict(measured.columns))
    z, labels = embedded(model, few(NOWHERE)), numbers(few(NOWHERE))
    expected = query_metrics(z, labels, ks=(1, 3), similarity=similarity)
    theirs = query_metrics(z, labels, similarity=similarity, compat="rdml")
    expected |= {f"{name}(rdml)": theirs[name] for name in ("map@r", "map@1000")}
    for name, values in expected.items():
        np.testing.assert_allclose(measured.columns[name], values, atol=1e-6, err_msg=name)
    assert np.isnan(measured.columns["map@r"]).sum() == 1  # the only 9
    usual = measure.metrics_of(replace(recipe, measure=settings).metrics, measured)
    names = ("recall@1", "r_precision", "map@r")
    assert usual == {name: pytest.approx(np.nanmean(expected[name])) for name in names}
    assert measured.groups is not None
    assert measured.groups.tolist() == (labels - 6).tolist()
    assert set(measured.columns["cluster"]) == {0, 1, 2, 3}
    np.testing.assert_allclose(measured.columns["norm"], np.linalg.norm(z, axis=1), rtol=1e-5)


class Numbered(torch.nn.Module):
    """Gives the features of an image, whose first pixel is its number from 1, or of its mirror
    image, whose last pixel is that.
    """

    def __init__(self, features: np.ndarray) -> None:
        super().__init__()
        self.features, self.dim = torch.from_numpy(features), features.shape[-1]

    def forward(self, pixels: torch.Tensor, _: torch.Tensor | None = None) -> torch.Tensor:
        first, last = pixels[:, 0, 0, 0].long(), pixels[:, 0, 0, -1].long()
        return self.features[first + last - 1, (first == 0).long()]


@pytest.mark.parametrize("case", ["cosine", "simple"])
def test_pairs_are_measured_as_opensphere_measures_them(case):
    golden = np.load(ROOT / "tests" / "golden" / "pairs__opensphere.npz")
    features = golden[f"{case}/features"]
    items = [Item(str(number), Path(str(number))) for number in range(len(features))]

    def read(item: Item) -> np.ndarray:
        return np.array([[[int(item.id) + 1, 0]]], dtype=np.float32)

    kind = "polarlike" if case == "simple" else "raw"
    embedder = TorchEmbedder(PixelScale(scale=1.0), Numbered(features), features=kind)
    similarity = "simple:0.3" if case == "simple" else "cosine"
    ids = tuple(item.id for item in items)
    first, second = golden[f"{case}/pairs"].astype(np.int32).T
    trials = Trials(ids, ids, first, second, golden[f"{case}/same"] == 1)
    measure_of = recipes.load(str(ROOT / "recipes/face/ms1mv2.py:b_simple"))[0].measure
    scores = Model(embedder, None, [], read, similarity).score((items, trials), measure_of.flip)
    np.testing.assert_allclose(scores.values, golden[f"{case}/scores"], atol=2e-6)
    found = metrics_of(measure_of.metrics, scores)
    assert found["eer"] == pytest.approx(float(golden[f"{case}/eer"]), abs=1e-9)
    for far in (0.001, 0.01):
        expected = float(golden[f"{case}/tpr_at_fpr({far})"])
        assert found[f"tpr_at_fpr({far})"] == pytest.approx(expected, abs=1e-9)
        assert found[f"tar_at_far({far})"] <= expected
    accuracy = balanced_accuracy(scores.targets, scores.nontargets)
    assert accuracy == pytest.approx(float(golden[f"{case}/acc"]), abs=1e-9)


def test_expected_metrics_are_the_mean_over_draws(trained):
    """E[mAP@R] (vMF paper, Sec. 3.2) within 5 standard errors of 400 draws there and as many
    here.
    """
    recipe, out = trained("open_vmf")
    model = measure.load_model(out, recipe)
    # of classes that it can tell apart, so that the width of the draws matters
    few = partial(some, labels={"0": 8, "1": 8})
    z, labels = torch.from_numpy(embedded(model, few(NOWHERE))), numbers(few(NOWHERE))
    # so wide that draws differ from the mean directions
    model.loss.alpha.fill_(4 / z.norm(dim=1).mean())

    def measured(**settings: Any) -> dict[str, np.ndarray]:
        return retrieval(model, NOWHERE, Retrieval(few, disjoint=False, **settings)).columns

    nu = z * float(model.loss.alpha)
    generator = torch.Generator().manual_seed(1)
    draws = sample(unit(nu), nu.norm(dim=1), 400, generator=generator).numpy()
    values = [query_metrics(x, labels, ks=(1,), similarity="cosine")["map@r"] for x in draws]
    means = np.mean(values, axis=1)
    error = 5 * np.std(means) * (2 / 400) ** 0.5
    assert error < 0.05
    result = measured(num_samples=400)
    assert result["map@r"].mean() == pytest.approx(np.mean(means), abs=error)
    assert measured()["map@r"].mean() > np.mean(means) + error
    cosine = measured(num_samples=400, similarity="cosine")
    np.testing.assert_array_equal(cosine["map@r"], result["map@r"])
    once, twice, again = (measured(num_samples=number)["recall@1"] for number in (1, 2, 2))
    np.testing.assert_array_equal(again, twice)  # tests draw alike
    assert set(once) == {0.0, 1.0}
    assert set(2 * twice - once) <= {0.0, 1.0}  # the second draw


def unlisted(data: Path) -> list[Item]:
    raise AssertionError("items were listed before the settings were checked")


def test_what_cannot_be_measured_is_refused(trained, tmp_path):
    recipe, out = trained("open")
    model = measure.load_model(out, recipe)
    trained_by = model.classes, Items.of(recipe.items(NOWHERE))
    trained_on = Retrieval(items=partial(some, labels={"4": 2, "5": 2, "6": 2}))
    with pytest.raises(ValueError, match="'4' is both trained and tested"):
        measure.items_of(trained_on, NOWHERE, *trained_by)
    measure.items_of(replace(trained_on, disjoint=False), NOWHERE, *trained_by)
    drawn = Retrieval(items=unlisted, num_samples=2, similarity="euclidean")
    with pytest.raises(ValueError, match="'euclidean'"):
        retrieval(model._replace(loss=VMF(8, 6)), NOWHERE, drawn)
    unknown = Classification(items=partial(some, labels={"4": 2, "7": 3}))
    with pytest.raises(ValueError, match="'7'"):
        measure.items_of(unknown, NOWHERE, *trained_by)
    known = Classification(items=partial(some, labels={"4": 2}))
    with pytest.raises(ValueError, match="Triplet has no class vectors"):
        classification(model._replace(loss=Triplet(8, 6)), NOWHERE, known)
    broken = [Item("a", tmp_path / "a.png", "6"), *some(NOWHERE, labels={"6": 2})]
    with pytest.raises(ValueError, match="1 of 3 test items"):
        retrieval(model, NOWHERE, Retrieval(items=lambda _: broken))
    without = replace(recipe.measure, metrics={"ece": per_item.calibration_error})  # type: ignore[type-var]
    with pytest.raises(ValueError, match="'confidence'"):
        metrics_of(replace(recipe, measure=without).metrics, run_test(recipe, out, NOWHERE))
    trials = replace(CLOSED, measure=None, schedule=Schedule(steps=1))
    fit(trials, data=NOWHERE, out=tmp_path / "run")
    with pytest.raises(ValueError, match="keeps no class vectors"):
        measure.load_model(tmp_path / "run", CLOSED)
    with pytest.raises(ValueError, match="loss: weights do not fit: 3 missing"):
        measure.load_model(out, replace(recipe, loss=partial(VMF)))


def test_the_loss_is_left_as_it_was(trained):
    """A validation in the middle of training must not change what follows: neither mode nor weights
    nor the noise of the loss.
    """
    recipe, out = trained("vmf")
    model = measure.load_model(out, recipe)
    model.embedder.train()
    model.loss.train()
    before = copy.deepcopy(model.loss.state_dict())
    classification(model, NOWHERE, Classification(items=partial(some, labels={"4": 4})))
    assert model.embedder.training
    assert model.loss.training
    torch.testing.assert_close(model.loss.state_dict(), before, rtol=0, atol=0)


def test_the_best_epoch_on_validation_is_kept(trained):
    for name in ("softmax", "vmf"):
        recipe, out = trained(name)
        looks = [line for line in read_log(out) if "accuracy" in line]
        assert [line["step"] for line in looks] == [10, 20, 30, 40]
        assert all("auroc" not in line for line in looks)  # only what is watched
        best = max(looks, key=lambda line: line["accuracy"])
        assert load_embedder(out).step == best["step"]
        settings, _ = measure.settings_of(recipe.measure)
        held_out = measure.measure_items(measure.load_model(out, recipe), NOWHERE, settings)
        found = metrics_of(recipe.metrics, held_out, only="accuracy")
        assert found == {"accuracy": best["accuracy"]}


def test_tuning_sees_the_validation_items_alone(tmp_path):
    pytest.importorskip("optuna")
    short = replace(CLOSED, schedule=replace(CLOSED.schedule, steps=4, eval_every=4))
    ranges = {"standard": {"optim.lr": Range(1e-4, 1e-1, log=True)}}
    terms = compare.Terms(ranges=ranges, num_trials=2)
    chosen = {"standard": short}
    result = compare.compare(chosen, num_seeds=1, data=NOWHERE, out=tmp_path, terms=terms)
    tuned = result.tuned["standard"]
    scores = []
    for number in range(2):
        measured = per_item.read(tmp_path / "tune" / "standard" / f"trial-{number}" / measure.TEST)
        assert measured.ids == tuple(item.id for item in HELD_OUT(NOWHERE))
        scores.append(measured.columns["correct"].mean())
    assert [record["score"] for record in tuned.trials] == pytest.approx(scores, abs=1e-12)
    assert tuned.score == max(scores)
    final = per_item.read(tmp_path / "standard" / "seed-0" / measure.TEST)
    assert len(final.ids) == 450
    assert dict(result.counts) == {"items": 450}
    by_metric = {cell.metric: cell.mean for cell in result.cells}
    assert by_metric == pytest.approx(metrics_of(short.metrics, final), abs=1e-12)
