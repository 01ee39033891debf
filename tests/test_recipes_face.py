"""The face recipes of the field hold the settings of their papers and configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.recipe import Recipe

FOLDER = Path(__file__).parents[1] / "recipes" / "face"
RECIPES: dict[str, dict[str, Any]] = {
    name: recipes.read(str(FOLDER / f"{name}.py"))["RECIPES"]
    for name in ("vggface2", "ms1mv2", "webface")
}


@pytest.mark.parametrize(
    ("variant", "steps", "warmup_steps", "rates"),
    # by hand, from the images and batches of the configs:
    # insightface/recognition/arcface_torch/configs/*.py
    [
        ("webface4m_r100", 82_700, 0, {0: 0.1, 41_350: 0.025}),
        ("webface42m_r100_pfc02", 829_580, 0, {414_790: 0.025}),
        ("webface42m_r100_pfc02_4k", 207_380, 10_369, {5_183: 0.15, 10_369: 0.3, 207_380: 0.0}),
        ("webface42m_r50_pfc02_4k", 207_380, 20_738, {10_368: 0.2, 20_738: 0.4, 114_059: 0.1}),
        ("webface42m_vit_b_pfc03", 69_120, 6_912, {6_912: 0.001}),
        ("glint360k_r100", 333_820, 0, {166_910: 0.025}),
    ],
)
def test_schedules_are_insightfaces(
    variant: str, steps: int, warmup_steps: int, rates: dict[int, float]
) -> None:
    recipe: Recipe = RECIPES["webface"][variant]
    schedule = recipe.schedule
    assert (schedule.steps, schedule.warmup_steps) == (steps, warmup_steps)
    for step, rate in rates.items():
        warm = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
        assert recipe.optim.lr * warm * schedule.decay(step / steps) == pytest.approx(
            rate, rel=2e-4
        )


@pytest.mark.parametrize(
    ("name", "variant", "settings", "clip"),
    [  # OpenSphere, config/train: sec31/vggface2_sfnet20_*.yml, appendix/
        # vggface2_sfnet20_sphereface2c.yml at e2315b7, ms1m_*.yml; lw / r is our weight
        ("vggface2", "sphereface", {"scale": 30, "margin": 1.5}, 10),
        ("vggface2", "cosface", {"scale": 30, "margin": 0.35}, 10),
        ("vggface2", "arcface", {"scale": 30, "margin": 0.5, "wrap": "clamp"}, 10),
        (
            "vggface2",
            "sphereface2",
            {"alpha": 0.7, "scale": 40, "margin": 0.4, "t": 3, "weight": 10 / 40},
            0,
        ),
        ("ms1mv2", "b_sphereface", {"scale": 32, "margin": 1.7}, 100),
        ("ms1mv2", "c_sphereface", {"scale": 64, "margin": 1.7}, 100),
        ("ms1mv2", "c_cosface", {"scale": 64, "margin": 0.4}, 100),
        (
            "ms1mv2",
            "c_sphereface2",
            {"alpha": 0.8, "scale": 64, "margin": 0.5, "t": 3, "weight": 50 / 64},
            100,
        ),
    ],
)
def test_losses_have_opensphere_s_settings(
    name: str, variant: str, settings: dict[str, Any], clip: float
) -> None:
    recipe: Recipe = RECIPES[name][variant]
    assert {key: recipe.loss.keywords[key] for key in settings} == settings
    assert recipe.optim.grad_clip == clip
    # "self.w.data = F.normalize(self.w.data)" in the forward pass of each head
    assert recipe.optim.unit_proxies
    assert RECIPES[name][f"{variant}_released"].optim == recipe.optim


@pytest.mark.parametrize(
    ("name", "variant"),
    [("vggface2", "simple"), ("vggface2", "ce"), ("ms1mv2", "c_simple"), ("ms1mv2", "c_magface")],
)
def test_other_class_vectors_have_their_own_lengths(name: str, variant: str) -> None:
    assert not RECIPES[name][variant].optim.unit_proxies


@pytest.mark.parametrize(
    ("name", "variant", "drops"),
    [
        ("vggface2", "arcface", (40_000, 60_000)),
        ("ms1mv2", "c_simple", (80_000, 140_000, 200_000)),
        ("ms1mv2", "b_simple", (100_000, 180_000, 220_000)),
    ],
)
def test_rates_drop_where_opensphere_drops_them(
    name: str, variant: str, drops: tuple[int, ...]
) -> None:
    schedule = RECIPES[name][variant].schedule
    for number, step in enumerate(drops):
        assert schedule.decay((step - 1) / schedule.steps) == pytest.approx(0.1**number)
        assert schedule.decay(step / schedule.steps) == pytest.approx(0.1 ** (number + 1))
