"""The nivMF paper: non-isotropic vMF proxies on CUB-200-2011, Cars196 and SOP.

Kirchhof, Roth, Akata and Kasneci, "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric
Learning", ECCV 2022: Tables 1, 2, 4 and 5, Figures 4, 5 and 9. A variant is called DATA_SET.METHOD;
the data sets are cub200, cars196 and sop.

    likeness train image/nivmf:cub200.panc_el_nivmf backbone.weights=resnet50.pth
        --data DATA --out runs/cub
    likeness reproduce nivmf/1 --data DATA --out runs/papers
    likeness compare image/nivmf:cub200 --variants panc_el_nivmf,panc_el_nivmf_jacobian
        --seeds 5 backbone.weights=resnet50.pth --data DATA --out runs/readings

DATA holds CUB_200_2011/, car_ims/ and cars_annos.mat, or Stanford_Online_Products/ (`likeness
prepare` fetches them, or says how). Half of the classes train, the unseen others test: 100 and 100
species, 98 and 98 models of cars, 11,318 and 11,316 products. backbone.weights is torchvision's
ImageNet ResNet-50, or the public bn_inception-52deb4733.pth for r_ibn_512 and ibn_omega=...

Hours a run, estimated from 300 images a second on a 2080 Ti:

                cub200   cars196   sop
    Table 1      1.0       1.1     5.5 (and minutes for NMI's k-means of 11,316 clusters)
    Table 2      1.4       2.2     5.5
    Figure 5      .5       1.1

`likeness reproduce nivmf/1`, 2, 4, 5, figure-4 and figure-5 set the paper's numbers beside ours;
nothing of them was measured by us. Rows of Table 2 are r_128, r_512 and r_ibn_512. The systems of
others in Table 2 are in image/nivmf_table_2. Those that are more than a loss are in
examples/systems, which take `--recipe image/nivmf:cub200.margin`. PADS and DRML are not.

Figure 4, omega: the best is where neither part is left out, up to 4 points above the ends. Our copy
of cub200's panel lost its title, and its ticks of .65 to .69 fit 512-D (omega_512=...) better than
128-D (omega=...). cars196 has 128-D (omega=...) and BN-Inception in 512-D (ibn_omega=...). omega=0
is el_nivmf.

Figure 5, 512-D, R@1: nivmf is 2.1 (cars196 1.7) above cos, and elk_nivmf, which is EL-nivMF, .6
(.3) above that. Concentration and temperature are what the release has for cub200, the only set of
which it prints what the paper's search found; `reproduce` searches again on cars196. NAME_untuned
has the middle of the searched grid and the 20 samples of Supp. H. Table 4 measures the same models
by Euclidean distance (*_euclidean), Table 5 the diversity of the training images (*_diversity).

Figure 9: right queries have longer embeddings. In test.npz: the column "norm", split by "recall@1"
of a run of cos. With five images of a product, a density for each of its axes is hard to estimate
(the paper's Limitations); figures and Tables 4 and 5 have no sop.

Published numbers are those of the best epoch ON THE TEST CLASSES (the release has no validation);
here the last epoch counts. Their mAP@1000 divides by R + 1 (metrics/c_mAP_1000.py) and is
map@1000(rdml) here. map@1000 divides by min(R, 1000); theirs can reach .983 of it on cub200, .988
on cars196 and .827 on sop.

Settings are those of Sec. 4.1 and Supp. I, and of the release
(ExplainableML/Probabilistic_Deep_Metric_Learning, example_runs.sh) for what the paper leaves out:
Adam 1e-5; weight decay 4e-4 as the release and Roth et al. run it (the paper prints 4e-3);
statistics of batch norm fixed; 2 images a class; 5 samples, of Figure 5 10, where Supp. H says
about 10. Where neither says (omega sweeps, Table 1's proxies) those of r_128 and r_512 without
their rate steps. For sop neither says more: loss and rates are the release's for cub200; omega,
rate steps and 100 epochs are ours, and optim.proxy_lr_scale, loss.weight and schedule.decay are
what to tune first.

Differences:
- C_n and sampler are exact. el_nivmf_released has the release's quadratic fit and its isotropic
  proxies (normalizer="released"). NAME_jacobian has the density that integrates to 1 in place of
  the paper's D(K), for every row with a nivMF; docs/explanation/vmf.md says why it is not the
  default.
- Eq 6 divides by the temperature outside of the mean over samples, Algorithm 1 and the release
  inside. The rows have Algorithm 1, and NAME_eq6 is Eq 6, for every row with EL-nivMF.
- The release's proxies start at class means. Here they start at random. start_at_means=true turns
  them to the means, as far as 4,096 views at most show them, and leaves their norms.
- panc's and proxynca's class vectors take weight decay. On sop panc's start shorter (deviation
  .0133, not .125) and move as much slower.
- margin's betas move at the network's rate, not 50 times as fast, and it draws no negatives at 1.4
  or farther.
- As in the release the last layer's initial weights are multiplied, so that |z|, the concentration,
  starts high, but not for cos, l2 and nivmf. Of BN-Inception the release multiplies none, and the
  factor is ours, since samples around a |z| below about 40 hardly tell the class in 512-D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from _shared import means, of_unseen

from likeness import losses
from likeness.backbones import BNInception, ImageResNet
from likeness.data import cars_items, cub_items, sop_items
from likeness.frontends import BN_INCEPTION
from likeness.recipe import (
    Choice,
    Optim,
    Part,
    Recipe,
    Retrieval,
    Sampling,
    Schedule,
    Search,
    constant,
    multistep,
)


class Size(NamedTuple):
    """What example_runs.sh sets for an embedding of one size."""

    concentration: float  # of the proxies, at the start
    head_scale: float  # of the last layer's initial weights
    omega: float  # weight of ProxyAnchor
    proxy_rate: float  # relative to the network's
    kappa_rate: float  # of the proxies' concentrations
    drops: tuple[int, ...]  # epochs of Table 2 at which the rate drops
    factor: float  # to which


class DataSet(NamedTuple):
    """A data set with its settings."""

    items: Part
    num_images: int  # to train on
    ks: tuple[int, ...]
    epochs: tuple[int, int, int]  # of Table 1, Table 2 and Figure 5
    batches: tuple[int, int, int]  # images, 2 of a class; in the same order
    d128: Size
    d512: Size
    panc_rate: float  # of ProxyAnchor's class vectors alone
    omegas: Mapping[str, tuple[float, ...]]  # Figure 4: the variants' prefix -> values


# fmt: off
DATA_SETS = {
    "cub200": DataSet(
        cub_items, 5_864, (1, 2), (150, 250, 50), (112, 64, 106),
        #   kappa  head  omega  proxies  kappas    drops      factor
        Size(6.0,  30.0, 3.0,   5_000.0, 20_000.0, (25, 50),   0.3),
        Size(18.0, 50.0, 5.0,   5_000.0, 20_000.0, (31,),      0.1),
        2_000.0,
        {
            "omega": (0.0, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0),
            "omega_512": (0.0, 0.01, 0.1, 1.0, 5.0, 10.0, 100.0),
        },
    ),
    "cars196": DataSet(
        cars_items, 8_054, (1, 2), (150, 300, 150), (112, 64, 106),
        #   kappa  head  omega  proxies  kappas    drops      factor
        Size(9.0,  12.0, 0.3,   7_500.0, 7_500.0,  (60, 80),   0.1),
        Size(22.0, 10.0, 0.1,   5_000.0, 20_000.0, (105, 170), 0.2),
        2_000.0,
        {
            "omega": (0.0, 0.01, 0.1, 0.3, 1.0, 10.0, 100.0),
            "ibn_omega": (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0),
        },
    ),
    "sop": DataSet(
        sop_items, 59_551, (1, 10), (100, 100, 0), (112, 112, 0),
        #   kappa  head  omega  proxies  kappas    drops      factor
        Size(6.0,  30.0, 3.0,   5_000.0, 20_000.0, (40, 70),   0.3),
        Size(18.0, 50.0, 5.0,   5_000.0, 20_000.0, (40, 70),   0.3),
        213.0,
        {},
    ),
}
# fmt: on
TABLE_1, TABLE_2, FIGURE_5 = range(3)  # of DataSet.epochs and DataSet.batches
# What example_runs.sh sets for the distances of Figure 5 on cub200. For those to a point it
# multiplies no last layer.
# fmt: off
DISTANCES = {
    #             distance    concentration  temperature  head_scale
    "cos":       ("cos",       10.0,         1 / 256,       1.0),
    "l2":        ("l2",       200.0,         1.0,           1.0),
    "nivmf":     ("nivmf",     10.0,         1 / 32,        1.0),
    "b_vmf":     ("b_vmf",     10.0,         1.0,         150.0),
    "el_vmf":    ("el_vmf",    10.0,         1.0,         150.0),
    "kl_vmf":    ("kl_vmf",    10.0,         1.0,         150.0),
    "elk_nivmf": ("el_nivmf",  50.0,         1.0,         150.0),
}
# fmt: on
DIVERSE = ("cos", "el_vmf", "elk_nivmf")  # of Table 5
RESNET = partial(ImageResNet, dim=128, depth=50, batch_norm="fixed")
PANC = partial(losses.ProxyAnchor, margin=0.1, scale=32.0)
PROXYNCA_RATE = 50.0
# Supp. I: three seeds and the median of the best epochs.
GRID = {
    "loss.temperature": Choice((1.0, 1 / 32, 1 / 256)),
    "loss.concentration": Choice((10.0, 50.0, 200.0)),
}
MIDDLE = {"temperature": 1 / 32, "concentration": 50.0, "num_samples": 20}


def el_nivmf(size: Size) -> Part:
    """EL-nivMF as the release runs it."""
    return partial(
        losses.ProbabilisticNCA,
        distance="el_nivmf",
        concentration=size.concentration,
        kappa_lr_scale=size.kappa_rate,
        temperature=0.003,
        temperature_lr_scale=200.0,
        num_samples=5,
    )


def joint(size: Size, omega: float | None = None) -> Part:
    """EL-nivMF and ProxyAnchor, weighted by omega."""
    weight = size.omega if omega is None else omega
    return partial(losses.Joint, first=el_nivmf(size), second=PANC, weight=weight)


def steps(data: DataSet, part: int) -> Schedule:
    """Whole batches of an epoch x epochs at one rate, measured at the end."""
    return Schedule(
        steps=data.epochs[part] * (data.num_images // data.batches[part]),
        decay=constant,
        save_every=1_000,
        higher_is_better=True,
    )


def drops(data: DataSet, size: Size) -> Schedule:
    """Table 2: the rate drops at some epochs."""
    at = tuple(epoch / data.epochs[TABLE_2] for epoch in size.drops)
    return replace(steps(data, TABLE_2), decay=partial(multistep, at=at, factor=size.factor))


def sampling(data: DataSet, part: int) -> Sampling:
    return Sampling(batch_size=data.batches[part], items_per_class=2)


def base(data: DataSet) -> Recipe:
    """EL-nivMF in 128 dimensions, as in Table 1."""
    recipe = of_unseen(
        data.items,
        data.ks,
        backbone=partial(RESNET, head_scale=data.d128.head_scale),
        loss=el_nivmf(data.d128),
    )
    optim = Optim(name="adam", lr=1e-5, weight_decay=4e-4, proxy_lr_scale=data.d128.proxy_rate)
    return replace(
        recipe,
        sampling=sampling(data, TABLE_1),
        optim=optim,
        schedule=steps(data, TABLE_1),
    )


def table_1(data: DataSet) -> dict[str, Recipe]:
    first = base(data)
    plain = replace(first, backbone=RESNET)
    margin = partial(
        losses.MarginLoss, margin=0.2, beta=1.2, per_class=True, mining="distance_weighted"
    )

    def at_rate(loss: Part, rate: float) -> Recipe:
        return replace(plain, loss=loss, optim=replace(plain.optim, proxy_lr_scale=rate))

    return {
        "panc_el_nivmf": replace(first, loss=joint(data.d128)),
        "el_nivmf": first,
        "panc": at_rate(PANC, data.panc_rate),
        "proxynca": at_rate(partial(losses.ProxyNCAPlusPlus, temperature=1 / 9), PROXYNCA_RATE),
        "margin": replace(plain, loss=margin),
        "multisimilarity": replace(
            plain, loss=partial(losses.MultiSimilarity, alpha=2.0, beta=40.0, base=0.5, epsilon=0.1)
        ),
    }


def table_2(data: DataSet) -> dict[str, Recipe]:
    r_128 = replace(
        base(data),
        loss=joint(data.d128),
        sampling=sampling(data, TABLE_2),
        schedule=drops(data, data.d128),
    )
    r_512 = replace(
        r_128,
        backbone=partial(RESNET, dim=512, head_scale=data.d512.head_scale),
        loss=joint(data.d512),
        optim=replace(r_128.optim, proxy_lr_scale=data.d512.proxy_rate),
        schedule=drops(data, data.d512),
    )
    inception = partial(BNInception, dim=512, batch_norm="fixed", head_scale=data.d512.head_scale)
    r_ibn_512 = replace(r_512, frontend=BN_INCEPTION, backbone=inception)
    return {"r_128": r_128, "r_512": r_512, "r_ibn_512": r_ibn_512}


def figure_4(data: DataSet) -> dict[str, Recipe]:
    """Values of omega, on the schedule of Table 1."""
    rows, first = table_2(data), base(data)
    models = {
        "omega": (first, data.d128),
        "omega_512": (rows["r_512"], data.d512),
        "ibn_omega": (rows["r_ibn_512"], data.d512),
    }
    return {
        f"{prefix}={omega:g}": replace(
            models[prefix][0],
            loss=joint(models[prefix][1], omega),
            sampling=first.sampling,
            schedule=first.schedule,
        )
        for prefix, omegas in data.omegas.items()
        for omega in omegas
    }


def figure_5(data: DataSet) -> dict[str, Recipe]:
    """One distance each, in 512 dimensions, as released for cub200."""
    if not data.epochs[FIGURE_5]:
        return {}
    first = base(data)
    return {
        name: replace(
            first,
            backbone=partial(RESNET, dim=512, head_scale=head_scale),
            loss=partial(
                losses.ProbabilisticNCA,
                distance=distance,
                concentration=concentration,
                kappa_lr_scale=50_000.0,
                temperature=temperature,
                temperature_lr_scale=500.0,
                num_samples=10,
            ),
            optim=replace(first.optim, proxy_lr_scale=data.d512.proxy_rate),
            sampling=sampling(data, FIGURE_5),
            schedule=steps(data, FIGURE_5),
        )
        for name, (distance, concentration, temperature, head_scale) in DISTANCES.items()
    }


def diverse(recipe: Recipe) -> Recipe:
    """Table 5: Supp. L measures images that were trained on."""
    measure = Retrieval(
        items=recipe.items,
        ks=(1,),
        disjoint=False,
        diversity=True,
        metrics=means("cluster_diversity", "feature_diversity"),
    )
    return replace(recipe, measure=measure)


def distance_of(recipe: Recipe) -> str:
    """The distance of its loss, or of the first part of it; "" for a loss without one."""
    assert isinstance(recipe.loss, partial)
    first = recipe.loss.keywords.get("first", recipe.loss)
    distance: str = first.keywords.get("distance", "")
    return distance


def with_nivmf(recipe: Recipe, **settings: Any) -> Recipe:
    """The same with other settings of its nivMF loss."""
    assert isinstance(recipe.loss, partial)
    if recipe.loss.func is losses.Joint:
        first = partial(recipe.loss.keywords["first"], **settings)
        return replace(recipe, loss=partial(recipe.loss, first=first))
    return replace(recipe, loss=partial(recipe.loss, **settings))


def variants(data: DataSet) -> dict[str, Recipe]:
    """Every variant of a data set."""
    rows, curves = {**table_1(data), **table_2(data)}, figure_5(data)
    distances = {name: distance_of(recipe) for name, recipe in {**rows, **curves}.items()}
    readings = {
        f"{name}_jacobian": with_nivmf({**rows, **curves}[name], normalizer="jacobian")
        for name, distance in distances.items()
        if distance in ("nivmf", "el_nivmf")
    }
    readings |= {
        f"{name}_eq6": with_nivmf({**rows, **curves}[name], temperature_inside=False)
        for name, distance in distances.items()
        if distance == "el_nivmf"
    }
    released = {}
    if curves:
        normalizer = partial(el_nivmf(data.d128), normalizer="released", method="quadratic")
        released = {"el_nivmf_released": replace(rows["el_nivmf"], loss=normalizer)}
    return {
        **rows,
        **released,
        **figure_4(data),
        **curves,
        **{f"{name}_untuned": with_nivmf(row, **MIDDLE) for name, row in curves.items()},
        **{
            f"{name}_euclidean": replace(row, similarity="euclidean")
            for name, row in curves.items()
        },
        **{f"{name}_diversity": diverse(curves[name]) for name in DIVERSE if curves},
        **readings,
    }


RECIPES = {
    f"{name}.{key}": recipe
    for name, data in DATA_SETS.items()
    for key, recipe in variants(data).items()
}
RANGES = {
    f"{name}.{key}": Search(GRID, seeds=3, looks=data.epochs[FIGURE_5])
    for name, data in DATA_SETS.items()
    for key in figure_5(data)
}
