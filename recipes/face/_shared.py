"""What the recipes of this folder share: aligned crops of 112 x 112 as the field trains on them,
SimPLE's part of a recipe, and the flips that releases have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from likeness.data import faces, folders, validation
from likeness.frontends import ADAFACE_VIEW, FLIP_VIEW, INSIGHTFACE
from likeness.losses import SimPLE
from likeness.metrics import eer, tar_at_far
from likeness.recipe import Compute, Memory, Optim, Part, Recipe, Sampling, Schedule, Verification

# On a few hundred trials; the field reports lower rates of false accepts, on more of them.
FEW_TRIALS: dict[str, Part] = {"eer": eer, "tar_at_far(.01)": partial(tar_at_far, far=0.01)}


WATCHED = partial(validation.trials)  # on LFW, AgeDB-30, CALFW and CPLFW together


def aligned(
    *,
    backbone: Part,
    loss: Part,
    grad_clip: float,
    schedule: Schedule,
    trials: Part = WATCHED,
) -> Recipe:
    """A recipe on all subjects of DATA, watched on trials while it trains.

    It is measured as OpenSphere measures: the embedding is the mean over the image and its mirror
    image, and tpr_at_fpr is interpolated. tar_at_far never exceeds the rate of false accepts.
    """
    fars = (1e-4, 1e-3, 1e-2)
    return Recipe(
        modality="face",
        frontend=INSIGHTFACE,
        backbone=backbone,
        loss=loss,
        items=partial(folders.items, modality="face", split="all"),
        read=partial(faces.read, size=(112, 112)),
        augment=partial(ADAFACE_VIEW),
        sampling=Sampling(batch_size=512),
        optim=Optim(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, grad_clip=grad_clip),
        schedule=schedule,
        compute=Compute(channels_last=True, workers=8),
        measure=Verification(
            trials=trials,
            metrics={
                "eer": eer,
                **{
                    f"tpr_at_fpr({far})": partial(tar_at_far, far=far, rule="interpolated")
                    for far in fars
                },
                **{f"tar_at_far({far})": partial(tar_at_far, far=far) for far in fars},
            },
            flip="mean",
        ),
    )


def simple(recipe: Recipe) -> Recipe:
    """The same with SimPLE as OpenSphere's release has it: its loss, pairs and bank."""
    loss = partial(SimPLE, r=3.0, alpha=0.001, b_theta=0.3, weight=500.0, features="polarlike")
    return replace(
        recipe,
        loss=loss,
        sampling=Sampling(batch_size=512, items_per_class=4),
        memory=Memory(2**19, 0.999),
    )


def with_512(recipe: Recipe) -> Recipe:
    """The same with an output more. Polar-like features have a dimension less than what they are
    made of, so that the embeddings have 512, as those of the other losses.
    """
    return replace(recipe, backbone=partial(recipe.backbone, dim=513))


def by_cosine(simple: Recipe) -> Recipe:
    """SimPLE with a cosine as its score, on raw features of 512 dimensions."""
    return replace(
        simple,
        backbone=partial(simple.backbone, dim=512),
        loss=partial(simple.loss, product="cosine", scale=30.0, features="raw"),
    )


def unit_proxies(recipe: Recipe) -> Recipe:
    """The same with class vectors that are normalised before every step, as OpenSphere's are.

    It writes them back with length 1, so that their lengths never change how far a step turns them
    (docs/reference/results.md has what that is worth on Omniglot).
    """
    return replace(recipe, optim=replace(recipe.optim, unit_proxies=True))


def released(recipes: Mapping[str, Recipe]) -> dict[str, Recipe]:
    """NAME_released: the same with flips only."""
    return {
        f"{name}_released": replace(recipe, augment=partial(FLIP_VIEW))
        for name, recipe in recipes.items()
    }


def readings(name: str, simple: Recipe) -> dict[str, Recipe]:
    """NAME_paper and NAME_learned_angle: SimPLE as the paper has it where its release differs.

    The release's loss is that of `simple`. In the paper (Eq 8) alpha weighs the pairs of one
    expectation over all pairs, nothing multiplies the loss, and the features are the network's. The
    text of Sec. 3 has the angular bias learned, which its appendix A and the release keep fixed.
    """
    paper = partial(simple.loss, reduction="joint", weight=1.0, features="raw")
    return {
        f"{name}_paper": replace(simple, backbone=partial(simple.backbone, dim=512), loss=paper),
        f"{name}_learned_angle": replace(simple, loss=partial(simple.loss, learn_b_theta=True)),
    }
