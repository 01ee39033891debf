"""VGGFace2 with SFNet-20: setting A of the SimPLE paper, Tables 3 and 10.

Wen et al., "Pairwise Similarity Learning is SimPLE", ICCV 2023: every loss of Table 3, and Table
10, the generalised product with proxies.

    likeness train face/vggface2:simple --data DATA --out runs/simple
    likeness compare face/vggface2 --variants simple,sphereface2,arcface
        --allow-different sampling --data DATA --out runs/a
        SimPLE's batches have four images of a subject
    likeness compare face/vggface2 --variants simple,simple_paper,simple_learned_angle
        --data DATA --out runs/readings
    likeness train face/vggface2:cosface_star_m0.1 loss.b_theta=0.5 --data DATA --out runs/star
        the rest of Table 10

DATA holds aligned crops of 112 x 112 (`likeness align`), DATA/n000002/0001_01.jpg: 8,631 subjects
and 3.14 million images of VGGFace2's training part; or DATA/train.rec with train.idx. The model is
watched on LFW, AgeDB-30, CALFW and CPLFW together while it trains, from DATA/lfw.bin, agedb_30.bin,
calfw.bin, cplfw.bin, or from a folder of that name with its list of pairs.
measure.trials.sets=lfw,cfp_fp watches others; measure=none schedule.watch= watches none. The best
on them is the model: report IJB instead. Many GPUs: torchrun --nproc-per-node N -m likeness train
...; batch sizes are those of all processes together.

Nothing here has been trained by us: docs/reference/results.md has what was measured. `likeness
reproduce simple/3` and simple/10 set the paper's numbers beside ours. IJB is measured by the
closed-set rule of likeness.eval.protocols.ijb. cosface_star_m0.1 and cosface_star_m0.2 did not
converge there, for every b_theta from 0 to .9. They have the margin on the target, as CosFace has
it; cosface_star_printed_* have it on all other classes, as Eq 10 is printed.

Printed: SFNet-20; crops, low resolution and colours with probability .2, flips with .5; r 3, alpha
.001, b_theta .3 (Sec. 5.1). The paper says so of all losses, and all have it here. Its release
gives the losses of Table 3 other than SimPLE flips only: NAME_released.

As released, since the paper does not say (OpenSphere, config/train/sec31/vggface2_sfnet20_*.yml):
- The first form of SFNet, without batch norm; batches of 512; SGD .1, a tenth of it at 40,000 and
  60,000 of 80,000 steps; momentum .9, weight decay 5e-4, clipped at 10.
- Scale 30; margins 1.5 (SphereFace-R), .35, .5; margins detached; class vectors normalised before
  every step (optim.unit_proxies), but for those of Table 10.
- SphereFace2-C alpha .7, r 40, m .4, t 3, lw 10, not clipped, as appendix/
  vggface2_sfnet20_sphereface2c.yml at e2315b7 has it; sec31/ at 26494db has r 30 and m .3.
- SimPLE as in ms1m_iresnet100_simple.yml (setting A has no file) where code and print differ: two
  means, b from -10 at a tenth of the rate, loss x 500, polar-like features, a bank of 524,288 keys
  with eta .999, 128 subjects x 4 images, clipped at 100. The bank starts empty (released: full of
  noise), and running statistics are averaged as the parameters are (released: parameters alone).
  Polar-like features take one output more, 513, so that all embeddings have 512 dimensions.
- simple_paper has Eq 8 as printed in place of the release's two means, factor and features: one
  expectation over all pairs, a factor of 1, raw features. simple_learned_angle learns b_theta, as
  the text of Sec. 3 says; appendix A and the release keep it fixed.

NOT printed or released, and ours:
- Scale 30 of NormFace; Circle .25 and 256, CurricularFace .5 and 64 (their papers'); CE and CE*
  without bias, CosFace* on the settings of CE.
- SimPLE (cosine) has scale 30 and raw features (a cosine does not see the polar-like magnitude),
  all else as SimPLE.
- Subjects are drawn equally often (released: by the root of their sizes, those with fewer than 8
  images left out). Biases and norms take no weight decay.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from _shared import aligned, by_cosine, readings, released, simple, unit_proxies, with_512

from likeness import losses
from likeness.backbones import SFNet
from likeness.recipe import Part, Schedule, multistep, override

TABLE_3: dict[str, Part] = {
    "normface": partial(losses.NormFace, scale=30.0),
    "sphereface": partial(losses.SphereFaceR, version=1, margin=1.5, scale=30.0),
    "cosface": partial(losses.CosFace, margin=0.35, scale=30.0),
    "arcface": partial(losses.ArcFace, margin=0.5, scale=30.0, wrap="clamp", grad="detached"),
    "circle": partial(losses.CircleSoftmax, margin=0.25, scale=256.0),
    "curricularface": partial(losses.CurricularFace, margin=0.5, scale=64.0, debias=False),
    "sphereface2": partial(
        losses.SphereFace2,
        kind="C",
        alpha=0.7,
        scale=40.0,
        margin=0.4,
        t=3.0,
        weight=10 / 40,
        grad="detached",
    ),
}
TABLE_10: dict[str, Part] = {
    "ce": partial(losses.Softmax),
    **{
        f"ce_star_b{b / 10}": partial(losses.Softmax, product="generalised", b_theta=b / 10)
        for b in range(10)
    },
    **{
        f"cosface_star_m{m}": partial(losses.CosFace, product="generalised", b_theta=0.3, margin=m)
        for m in (0.1, 0.2)
    },
    **{
        f"cosface_star_printed_m{m}": partial(
            losses.CosFace, product="generalised", b_theta=0.3, margin=m, lowers="others"
        )
        for m in (0.1, 0.2)
    },
}

ARCFACE = aligned(
    backbone=partial(SFNet, dim=512, depth=20, deprecated=True),
    loss=TABLE_3["arcface"],
    grad_clip=10.0,
    schedule=Schedule(
        steps=80_000,
        decay=partial(multistep, at=(1 / 2, 3 / 4)),
        eval_every=2_000,
        save_every=1_000,
        watch="eer",
    ),
)
SIMPLE = replace(with_512(simple(ARCFACE)), optim=replace(ARCFACE.optim, grad_clip=100.0))
BY_PROXIES = {name: unit_proxies(replace(ARCFACE, loss=loss)) for name, loss in TABLE_3.items()}
BY_PROXIES["sphereface2"] = override(BY_PROXIES["sphereface2"], ["optim.grad_clip=0"])

RECIPES = {
    "simple": SIMPLE,
    "simple_cosine": by_cosine(SIMPLE),
    **readings("simple", SIMPLE),
    **BY_PROXIES,
    **released(BY_PROXIES),
    **{name: replace(ARCFACE, loss=loss) for name, loss in TABLE_10.items()},
}
