"""VoxCeleb: Table 8 of the SimPLE paper, and WeSpeaker's recipes.

They train on VoxCeleb2 dev (5,994 speakers, 1,092,009 utterances) and test on VoxCeleb1-O.

    likeness prepare voxceleb1 --data DATA
        and voxceleb2, musan, rirs_noises: says what to fetch, or fetches it, and counts
    likeness train speaker/voxceleb:simple --data DATA --out runs/simple
    likeness compare speaker/voxceleb --data DATA --out runs/readings
        --variants simple,simple_paper,simple_learned_angle,simple_released
    likeness train speaker/voxceleb:wespeaker_resnet34 --data DATA --out runs/wespeaker_resnet34
        with the noise and rooms in DATA; augment.corrupt.musan=FOLDER and
        augment.corrupt.rirs=FOLDER name others, and augment.corrupt=none trains without
    likeness train speaker/voxceleb:wespeaker_resnet34_lm init=runs/wespeaker_resnet34
        --data DATA --out runs/resnet34_lm
        with the same folders of noise; wespeaker_resnet34_topk and _topk_lm likewise
    python recipes/speaker/voxceleb.py DATA OUT E_cleaned
        items and trials for `embed` and `score`; O, E, H, O_cleaned, E_cleaned, H_cleaned

Tests during training are on VoxCeleb1-O cleaned; on -E and -H with
measure.trials.protocol=E_cleaned, for which DATA must hold VoxCeleb1's dev AND test audio. Many
GPUs: torchrun --nproc-per-node N -m likeness train ...; batch sizes are those of all processes
together. Eight GPUs with 128 utterances each take sampling.batch_size=1024 schedule.epochs=150:
warm-up, margins and checkpoints keep their place in the course of the training, and the rates of
WeSpeaker's recipes follow the batch (optim.reference_batch). `train --check` prints the numbers.

Shards, a Kaldi folder or a table of VoxCeleb2 take the official trials from the folder of
VoxCeleb1: --data SHARDS --test DATA. measure=none needs no trials.

Nothing here has been trained by us: docs/reference/results.md has what was measured. `likeness
reproduce simple/8` sets the numbers of Wen et al. 2023 beside ours, on the cleaned lists; the paper
does not say whether its lists are the cleaned ones. Published by WeSpeaker, EER % on VoxCeleb1-O, E
and H: examples/voxceleb/v2/README.md, cleaned, cosine after subtracting the mean of VoxCeleb2
dev (`score --subtract-mean`); in the last columns with AS-norm (`score --cohort`, top 300):

                              O       E       H        O      E      H, AS-norm
    wespeaker_resnet34        .867   1.049   1.959     .787   .964   1.726
    wespeaker_resnet34_lm     .797    .937   1.695     .723   .867   1.532
    wespeaker_resnet221       .569    .774   1.464     .479   .707   1.290
    wespeaker_resnet221_lm    .580    .729   1.351     .505   .676   1.213
    wespeaker_resnet293       .595    .756   1.433     .537   .701   1.276
    wespeaker_resnet293_lm    .532    .707   1.311     .447   .657   1.183
    wespeaker_ecapa512       1.069   1.209   2.310     .957  1.128   2.105
    wespeaker_ecapa512_lm     .878   1.072   2.007     .782  1.005   1.824
    wespeaker_ecapa1024       .856   1.072   2.059     .808   .990   1.874
    wespeaker_ecapa1024_lm    .798    .993   1.883     .728   .929   1.721
    wespeaker_campplus        .803    .932   1.860     .718   .879   1.735
    wespeaker_campplus_lm     .707    .845   1.664     .659   .803   1.569
    wespeaker_eres2net        .914   1.065   1.986     .803   .976   1.787
    wespeaker_eres2net_lm     .824    .968   1.776     .744   .896   1.603

Hours: ResNet34 3 to 4 days on two 2080 Ti (WeSpeaker issue 93: 30 to 40 minutes an epoch); those of
the others are not published.

Table 8 as printed: ResNet-34, crops of 3 to 8 s, batches of 512, SGD from .1, a tenth of it after
30,000, 50,000 and 60,000 of 70,000 steps; r 3, alpha .001 and b_theta .3 (Sec. 5.1). NOT printed,
and ours: features (80 mel, mean-normalised), dimension 256, momentum .9, weight decay 5e-4, margins
and scales of the baselines (the field's), the bank (16,384 keys, eta .999), b's start. The draws
are a shuffled pass. Where the paper and its release for faces differ, simple has Eq 8 with the
release's two means. simple_paper has one expectation over all pairs, as Eq 8 is printed;
simple_learned_angle learns b_theta, as the text of Sec. 3 says; simple_released has the release's
factor of 500, its gradients clipped at 100, and its polar-like features, which take one output
more.

WeSpeaker's, conf/resnet.yaml and ecapa_tdnn.yaml:
- Two GPUs x 128 = 256 a step, rate .1 for 64 (its bin/train.py), so .4 -> 2e-4. An epoch is
  1,092,009 / 256 = 4,265 steps; 150 epochs = 639,750; warm-up of 6 = 25,590.
- The margin grows from 0 to .2 from the start of epoch 20 to that of epoch 40, after 19 and 39
  epochs = 81,035 and 166,335 (utils/schedulers.py MarginScheduler).
- wespeaker_resnet34_topk, conf/resnet_mqmha_intertopk_subcenter.yaml: pooling and loss of Zhao et
  al. 2022. Two GPUs x 64 = 128, rate .2 -> 1e-4; an epoch is 8,531 steps, 150 epochs = 1,279,650,
  warm-up of 6 = 51,186. The margin, and the penalty with it, grow from 162,089 to 332,709. Its _lm
  has no penalty. We found no published results.
- conf/*_lm.yaml: two GPUs x 64 = 128, rate 1e-4 x 128 / 64 = 2e-4 -> 5e-5; an epoch is 8,531 steps,
  5 epochs = 42,655, warm-up of 1 = 8,531; 6 s, margin .5. ERes2Net takes two GPUs x 32 = 64, rate
  1e-4 -> 2.5e-5; an epoch is 17,062 steps.
- wespeaker_resnet221 and _resnet293 are conf/resnet.yaml with the other depth, wespeaker_campplus
  is conf/campplus.yaml, and wespeaker_eres2net conf/eres2net.yaml (ERes2Net34_Base).
- wespeaker_redimnet2, conf/redimnet2.yaml (ReDimNet2 B6 by SphereFace2): two GPUs x 512 = 1,024,
  rate .1 x 12 = 1.2 -> 7.2e-4; an epoch is 1,066 steps, 120 epochs = 127,920, warm-up of 6 = 6,396.
  Its _lm, conf/redimnet2_lm.yaml: 256, rate 1.2e-3 -> 1.2e-4 without warm-up, 5 epochs of 4,265
  steps, margin .3, no noise. Its margin grows from 0 to .2 in epochs 20 to 40; ours is .2 from the
  start. WeSpeaker states no results for them.

Differences: no average of the last 10 checkpoints; biases and norms take no weight decay; in _lm
each speaker keeps one sped-up utterance a speed, so that the 17,982 class vectors of the first
stage go on (theirs stay unused).
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from likeness import LikenessError
from likeness.backbones import CAMPPlus, ERes2Net, ReDimNet2, ResNet, WeSpeakerECAPA
from likeness.data import audio, voxceleb, write_items, write_trials
from likeness.frontends import WESPEAKER_VIEW, KaldiFbank, MelSpectrogram, spec_augment, train_view
from likeness.losses import (
    ArcFace,
    CosFace,
    InterTopK,
    SimPLE,
    Softmax,
    SphereFace,
    SphereFace2,
)
from likeness.metrics import eer, min_dcf
from likeness.recipe import (
    Compute,
    Memory,
    Optim,
    Recipe,
    Sampling,
    Schedule,
    Verification,
    exponential,
    multistep,
    one_sentence,
    say,
)

SIMPLE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80, cmn=True),
    backbone=partial(ResNet, dim=256, width=32),
    loss=partial(SimPLE, r=3.0, alpha=0.001, b_theta=0.3),
    items=partial(voxceleb.items, corpus="voxceleb2", split="dev"),
    measure=Verification(
        trials=partial(voxceleb.trials, protocol="O_cleaned"),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=audio.read,
    augment=partial(train_view, seconds=(3.0, 8.0)),
    mask=partial(spec_augment, prob=0.0),  # off, as in WeSpeaker's recipes
    sampling=Sampling(batch_size=512),
    memory=Memory(16_384, 0.999),
    optim=Optim(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
    schedule=Schedule(
        steps=70_000,
        decay=partial(multistep, at=(3 / 7, 5 / 7, 6 / 7)),
        eval_every=5_000,
        save_every=1_000,
    ),
    compute=Compute(workers=8),
)
MARGIN = replace(SIMPLE, memory=None)

RESNET34 = replace(
    MARGIN,
    frontend=partial(KaldiFbank, num_mels=80, dither=1.0, cmn=True),
    loss=partial(
        ArcFace, margin=0.2, scale=32.0, warmup_steps=(81_035, 166_335), ramp="exponential"
    ),
    items=partial(voxceleb.items, corpus="voxceleb2", split="dev", speeds=(0.9, 1.1)),
    augment=WESPEAKER_VIEW,
    sampling=Sampling(batch_size=256),
    optim=Optim(
        name="sgd", lr=0.1, reference_batch=64, momentum=0.9, nesterov=True, weight_decay=1e-4
    ),
    schedule=Schedule(
        steps=639_750,
        warmup_steps=25_590,
        decay=partial(exponential, end=5e-4),
        eval_every=21_325,
        save_every=4_265,
    ),
)
RESNET221 = replace(RESNET34, backbone=partial(ResNet, depth=221, dim=256, width=32))
RESNET293 = replace(RESNET34, backbone=partial(ResNet, depth=293, dim=256, width=32))
CAMPPLUS = replace(RESNET34, backbone=partial(CAMPPlus, dim=512))
ERES2NET = replace(RESNET34, backbone=partial(ERes2Net, dim=512))
ECAPA512 = replace(RESNET34, backbone=partial(WeSpeakerECAPA, dim=192, channels=512))
ECAPA1024 = replace(RESNET34, backbone=partial(WeSpeakerECAPA, dim=192, channels=1024))

RESNET34_TOPK = replace(
    RESNET34,
    backbone=partial(ResNet, dim=256, width=32, pooling="MQMHASTP"),
    loss=partial(
        InterTopK,
        num_subcentres=3,
        hardest=5,
        penalty=0.06,
        margin=0.2,
        scale=32.0,
        warmup_steps=(162_089, 332_709),
        ramp="exponential",
    ),
    sampling=Sampling(batch_size=128),
    schedule=replace(
        RESNET34.schedule,
        steps=1_279_650,
        warmup_steps=51_186,
        eval_every=42_655,
        save_every=8_531,
    ),
)


REDIMNET2 = replace(
    RESNET34,
    frontend=partial(MelSpectrogram, normalise=True, cmn=False, framing="tensorflow"),
    backbone=partial(ReDimNet2, size="b6", dim=192),
    loss=partial(SphereFace2, margin=0.2, scale=32.0),
    sampling=Sampling(batch_size=1_024),
    optim=replace(RESNET34.optim, lr=1.2, reference_batch=1_024, weight_decay=2e-5),
    schedule=Schedule(
        steps=127_920,
        warmup_steps=6_396,
        decay=partial(exponential, end=6e-4),
        eval_every=5_330,
        save_every=1_066,
    ),
)


def large_margin(stage: Recipe, init: str) -> Recipe:
    """The second stage of a WeSpeaker recipe: longer crops, a larger margin, small rates, sped-up
    speech only to keep its classes.
    """
    return replace(
        stage,
        loss=partial(ArcFace, margin=0.5, scale=32.0),
        items=partial(
            voxceleb.items, corpus="voxceleb2", split="dev", speeds=(0.9, 1.1), speed_items="one"
        ),
        augment=partial(WESPEAKER_VIEW, seconds=(6.015, 6.015)),
        sampling=Sampling(batch_size=128),
        optim=replace(stage.optim, lr=1e-4),
        schedule=Schedule(
            steps=42_655,
            warmup_steps=8_531,
            decay=partial(exponential, end=0.25),
            eval_every=8_531,
            save_every=8_531,
        ),
        init=init,
    )


CAMPPLUS_LM = large_margin(CAMPPLUS, "runs/wespeaker_campplus")
ERES2NET_LM = large_margin(ERES2NET, "runs/wespeaker_eres2net")
REDIMNET2_LM = large_margin(REDIMNET2, "runs/wespeaker_redimnet2")

RECIPES = {
    "simple": SIMPLE,
    "simple_paper": replace(SIMPLE, loss=partial(SIMPLE.loss, reduction="joint")),
    "simple_learned_angle": replace(SIMPLE, loss=partial(SIMPLE.loss, learn_b_theta=True)),
    "simple_released": replace(
        SIMPLE,
        backbone=partial(SIMPLE.backbone, dim=257),
        loss=partial(SIMPLE.loss, weight=500.0, features="polarlike"),
        optim=replace(SIMPLE.optim, grad_clip=100.0),
    ),
    "softmax": replace(MARGIN, loss=Softmax),
    "a_softmax": replace(MARGIN, loss=partial(SphereFace, margin=4)),
    "am_softmax": replace(MARGIN, loss=partial(CosFace, margin=0.2, scale=30.0)),
    "aam_softmax": replace(MARGIN, loss=partial(ArcFace, margin=0.2, scale=30.0)),
    "wespeaker_resnet34": RESNET34,
    "wespeaker_ecapa512": ECAPA512,
    "wespeaker_ecapa1024": ECAPA1024,
    "wespeaker_resnet34_lm": large_margin(RESNET34, "runs/wespeaker_resnet34"),
    "wespeaker_ecapa512_lm": large_margin(ECAPA512, "runs/wespeaker_ecapa512"),
    "wespeaker_ecapa1024_lm": large_margin(ECAPA1024, "runs/wespeaker_ecapa1024"),
    "wespeaker_resnet221": RESNET221,
    "wespeaker_resnet221_lm": large_margin(RESNET221, "runs/wespeaker_resnet221"),
    "wespeaker_resnet293": RESNET293,
    "wespeaker_resnet293_lm": large_margin(RESNET293, "runs/wespeaker_resnet293"),
    "wespeaker_campplus": CAMPPLUS,
    "wespeaker_campplus_lm": CAMPPLUS_LM,
    "wespeaker_eres2net": ERES2NET,
    "wespeaker_eres2net_lm": replace(
        ERES2NET_LM,
        sampling=Sampling(batch_size=64),
        schedule=replace(
            ERES2NET_LM.schedule,
            steps=85_310,
            warmup_steps=17_062,
            eval_every=17_062,
            save_every=17_062,
        ),
    ),
    "wespeaker_redimnet2": REDIMNET2,
    "wespeaker_redimnet2_lm": replace(
        REDIMNET2_LM,
        loss=partial(SphereFace2, margin=0.3, scale=32.0),
        augment=partial(train_view, seconds=(6.015, 6.015)),
        sampling=Sampling(batch_size=256),
        optim=replace(REDIMNET2_LM.optim, lr=1.2e-3, reference_batch=256),
        schedule=Schedule(
            steps=21_325,
            decay=partial(exponential, end=0.1),
            eval_every=4_265,
            save_every=4_265,
        ),
    ),
    "wespeaker_resnet34_topk": RESNET34_TOPK,
    "wespeaker_resnet34_topk_lm": replace(
        large_margin(RESNET34_TOPK, "runs/wespeaker_resnet34_topk"),
        # the penalty of the first stage is removed, its sub-centres go on
        loss=partial(InterTopK, num_subcentres=3, hardest=0, margin=0.5, scale=32.0),
    ),
}


def write_lists(data: Path, out: Path, protocol: voxceleb.Protocol) -> None:
    """Write out/items.txt and out/trials.txt of a VoxCeleb1 protocol."""
    items, trials = voxceleb.trials(data, protocol=protocol)
    out.mkdir(parents=True, exist_ok=True)
    write_items(out / "items.txt", items, data)
    write_trials(out / "trials.txt", trials)
    say(f"{len(items)} items and {len(trials)} trials of VoxCeleb1-{protocol} in {out}")


if __name__ == "__main__":
    with one_sentence("voxceleb.py"):
        if len(sys.argv) != 4 or sys.argv[3] not in get_args(voxceleb.Protocol):
            raise LikenessError(
                "usage: python recipes/speaker/voxceleb.py DATA OUT PROTOCOL, where PROTOCOL is "
                f"one of {', '.join(get_args(voxceleb.Protocol))}"
            )
        write_lists(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
