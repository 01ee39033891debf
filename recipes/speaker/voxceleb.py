"""VoxCeleb: Table 8 of the SimPLE paper, and recipes of WeSpeaker and 3D-Speaker.

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
together. Recipes of WeSpeaker and 3D-Speaker are in passes over the data, with the rate of a
reference batch: eight GPUs with 128 utterances each take sampling.batch_size=1024, and rates,
warm-up, margins and checkpoints follow. `train --check` prints the numbers. A pass is three of
their epochs, because every utterance is there at three speeds, but for _lm.

Shards, a Kaldi folder or a table of VoxCeleb2 take the official trials from the folder of
VoxCeleb1: --data SHARDS --test DATA. measure=none needs no trials.

Nothing here has been trained by us: docs/reference/results.md has what was measured. `likeness
reproduce simple/8` sets the numbers of Wen et al. 2023 beside ours, on the cleaned lists; the paper
does not say whether its lists are the cleaned ones. Published by WeSpeaker, EER % on VoxCeleb1-O, E
and H: examples/voxceleb/v2/README.md at 7d7b707, cleaned, cosine after subtracting the mean of
VoxCeleb2 dev (`score --subtract-mean`); in the last columns with AS-norm (`score --cohort`, top
300):

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
    wespeaker_simam34_lm      .415    .615   1.121     .372   .581   1.049  after VoxBlink2
    wespeaker_simam100_lm     .229    .458    .868     .207   .424    .804  after VoxBlink2
    3dspeaker_eres2netv2      .68
    3dspeaker_eres2netv2_lm   .61     .76    1.45

The two SimAM-ResNets were trained on VoxBlink2 first; of VoxCeleb2 alone WeSpeaker states nothing
for them, and Qin et al. 2022 .675 on O for theirs. init=wespeaker:FILE.pt starts from a published
one. Those of ERes2NetV2 are 3D-Speaker's, by the cosine alone: egs/voxceleb/README.md at 80b6886,
and sv-eres2netv2/README.md at e3ad5bb, which has O alone before the second stage.

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
- Two GPUs x 128 = 256 a step, rate .1 for 64 (its bin/train.py), so .4 -> 2e-4. 150 epochs of
  1,092,009 utterances, warm-up of 6; the model is the mean of the last 10 (run.sh, num_avg).
- The margin grows from 0 to .2 from the start of epoch 20 to that of epoch 40, after 19 and 39
  epochs (utils/schedulers.py MarginScheduler).
- wespeaker_resnet34_topk, conf/resnet_mqmha_intertopk_subcenter.yaml: pooling and loss of Zhao et
  al. 2022. Two GPUs x 64 = 128, rate .2 -> 1e-4. The penalty grows with the margin. Its _lm has no
  penalty. We found no published results.
- conf/*_lm.yaml: from the averaged model, two GPUs x 64 = 128, rate 1e-4 x 128 / 64 = 2e-4 -> 5e-5,
  5 epochs, warm-up of 1; 6 s, margin .5; the model is the last one. ERes2Net takes two GPUs x 32 =
  64, rate 1e-4 -> 2.5e-5.
- wespeaker_resnet221 and _resnet293 are conf/resnet.yaml with the other depth, wespeaker_campplus
  is conf/campplus.yaml, and wespeaker_eres2net conf/eres2net.yaml (ERes2Net34_Base). WeSpeaker has
  no configuration for SimAM-ResNet; wespeaker_simam34 and _simam100 are conf/resnet.yaml with its
  networks.
- wespeaker_redimnet2, conf/redimnet2.yaml (ReDimNet2 B6 by SphereFace2): two GPUs x 512 = 1,024,
  rate .1 x 12 = 1.2 -> 7.2e-4, 120 epochs, warm-up of 6. Its _lm, conf/redimnet2_lm.yaml: 256, rate
  1.2e-3 -> 1.2e-4 without warm-up, 5 epochs, margin .3, no noise. Its margin grows from 0 to .2 in
  epochs 20 to 40; ours is .2 from the start. WeSpeaker states no results for them.

3D-Speaker's, egs/voxceleb/sv-eres2netv2/conf/eres2netv2.yaml and eres2netv2_lm.yaml at 8f16ab0:
- 168 a step on four GPUs (its README says 256), rate .2 -> 5e-5 along a cosine after a warm-up of 5
  of 70 epochs; 3 s; noise or rooms in .8 of the views; the margin grows from 0 to .3 from epoch 20
  to 50. Its _lm: 108 a step, 1e-4 -> 2e-5 in 7 epochs with a warm-up of 1, 6 s, margin .5.
- Its warm-up starts from the last rate and not from 0, a third of its corrupted views have noise
  and a room, music and speech are as loud as noise, and shorter utterances are padded.

Differences from both: biases and norms take no weight decay; in _lm each speaker keeps one sped-up
utterance a speed, so that the 17,982 class vectors of the first stage go on (theirs stay unused),
from the last step of the first stage and not averaged.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

from _shared import METRICS, NO_MASK, large_margin, resnet34

from likeness import LikenessError
from likeness.backbones import (
    CAMPPlus,
    ERes2Net,
    ERes2NetV2,
    ReDimNet2,
    ResNet,
    SimAMResNet,
    WeSpeakerECAPA,
)
from likeness.data import audio, voxceleb, write_items, write_trials
from likeness.frontends import (
    THREED_SPEAKER_FBANK,
    KaldiFbank,
    MelSpectrogram,
    corrupt,
    train_view,
)
from likeness.losses import (
    ArcFace,
    CosFace,
    InterTopK,
    SimPLE,
    Softmax,
    SphereFace,
    SphereFace2,
)
from likeness.recipe import (
    Compute,
    Memory,
    Optim,
    Part,
    Recipe,
    Sampling,
    Schedule,
    Tuning,
    Verification,
    cosine,
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
    measure=Verification(trials=partial(voxceleb.trials, protocol="O_cleaned"), metrics=METRICS),
    read=audio.read,
    augment=partial(train_view, seconds=(3.0, 8.0)),
    mask=NO_MASK,
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

RESNET34 = resnet34(
    partial(voxceleb.items, corpus="voxceleb2", split="dev"),
    partial(voxceleb.trials, protocol="O_cleaned"),
)
# WeSpeaker's networks that differ from its ResNet34 in nothing else.
NETWORKS: dict[str, Part] = {
    "resnet34": RESNET34.backbone,
    "resnet221": partial(ResNet, depth=221, dim=256, width=32),
    "resnet293": partial(ResNet, depth=293, dim=256, width=32),
    "ecapa512": partial(WeSpeakerECAPA, dim=192, channels=512),
    "ecapa1024": partial(WeSpeakerECAPA, dim=192, channels=1024),
    "campplus": partial(CAMPPlus, dim=512),
    "eres2net": partial(ERes2Net, dim=512),
    "simam34": partial(SimAMResNet, dim=256),
    "simam100": partial(SimAMResNet, dim=256, depth=100),
}
WESPEAKER = {
    f"wespeaker_{name}": replace(RESNET34, backbone=network) for name, network in NETWORKS.items()
}
LARGE_MARGIN = {
    f"{name}_lm": large_margin(recipe, f"runs/{name}") for name, recipe in WESPEAKER.items()
}

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
        warmup_steps=(19, 39),
        ramp="exponential",
    ),
    sampling=Sampling(batch_size=128),
)

REDIMNET2 = replace(
    RESNET34,
    frontend=partial(MelSpectrogram, normalise=True, cmn=False, framing="tensorflow"),
    backbone=partial(ReDimNet2, size="b6", dim=192),
    loss=partial(SphereFace2, margin=0.2, scale=32.0),
    sampling=Sampling(batch_size=1_024),
    optim=replace(RESNET34.optim, lr=1.2, reference_batch=1_024, weight_decay=2e-5),
    schedule=replace(RESNET34.schedule, steps=120, epochs=40, decay=partial(exponential, end=6e-4)),
)
REDIMNET2_LM = large_margin(REDIMNET2, "runs/wespeaker_redimnet2")

# 3D-Speaker's. Its schedule counts epochs as WeSpeaker's does.
ERES2NETV2 = replace(
    RESNET34,
    frontend=THREED_SPEAKER_FBANK,
    backbone=partial(ERes2NetV2, dim=192),
    loss=partial(ArcFace, margin=0.3, scale=32.0, warmup_steps=(20, 50), ramp="exponential"),
    augment=partial(train_view, seconds=(3.0, 3.0), corrupt=partial(corrupt, prob=0.8)),
    sampling=Sampling(batch_size=168),
    optim=replace(RESNET34.optim, lr=0.2, reference_batch=168),
    tuning=Tuning(),
    schedule=Schedule(
        steps=70,
        epochs=70 / 3,
        warmup_steps=5,
        decay=partial(cosine, start=5 / 70, end=2.5e-4),
        eval_every=10,
        save_every=1,
    ),
)

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
    **WESPEAKER,
    **LARGE_MARGIN,
    "wespeaker_eres2net_lm": replace(
        LARGE_MARGIN["wespeaker_eres2net_lm"], sampling=Sampling(batch_size=64)
    ),
    "wespeaker_redimnet2": REDIMNET2,
    "wespeaker_redimnet2_lm": replace(
        REDIMNET2_LM,
        loss=partial(SphereFace2, margin=0.3, scale=32.0),
        augment=partial(train_view, seconds=(6.015, 6.015)),
        sampling=Sampling(batch_size=256),
        optim=replace(REDIMNET2_LM.optim, lr=1.2e-3, reference_batch=256),
        schedule=replace(
            REDIMNET2_LM.schedule, warmup_steps=0, decay=partial(exponential, end=0.1)
        ),
    ),
    "wespeaker_resnet34_topk": RESNET34_TOPK,
    "wespeaker_resnet34_topk_lm": replace(
        large_margin(RESNET34_TOPK, "runs/wespeaker_resnet34_topk"),
        # the penalty of the first stage is removed, its sub-centres go on
        loss=partial(InterTopK, num_subcentres=3, hardest=0, margin=0.5, scale=32.0),
    ),
    "3dspeaker_eres2netv2": ERES2NETV2,
    "3dspeaker_eres2netv2_lm": replace(
        large_margin(ERES2NETV2, "runs/3dspeaker_eres2netv2"),
        augment=partial(train_view, seconds=(6.0, 6.0), corrupt=partial(corrupt, prob=0.8)),
        sampling=Sampling(batch_size=108),
        optim=replace(ERES2NETV2.optim, lr=1e-4, reference_batch=108),
        schedule=Schedule(
            steps=7,
            epochs=7,
            warmup_steps=1,
            decay=partial(cosine, start=1 / 7, end=0.2),
            eval_every=1,
            save_every=1,
        ),
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
