"""A verifier from your own recordings, DATA/SPEAKER/**/*.wav.

Recordings may be flac, mp3 and ogg as well. Four speakers or more with two files or more each are
needed.

    likeness train speaker/folders --data DATA --out runs/mine
        order statistics: minutes on a CPU, dozens of speakers
    likeness train speaker/folders:resnet34 --data DATA --out runs/mine
        ResNet-34 on a GPU, hundreds of speakers and more (ecapa likewise)
    likeness lists DATA --out OUT
        the item list and the trial list of the held-out speakers for `embed` and `score`

DATA may also be a .csv, .tsv or .parquet file, a list, a Kaldi folder or an .rttm file, and
`--label '{label}_*.wav'` takes the speakers from the names of files.
What codecs, another level and noise cost the default is in docs/reference/results.md#conditions. It
takes what lies below 7 kHz, at one level of speech, with noise in some views; speakers at other
speeds are further classes. Its model refuses recordings that have nothing above 4.5 kHz, such as
those of telephones, except where it was trained on such recordings. read.needs_hz=0 refuses none.

A fifth of the speakers is held out and never trained on; trials among them are drawn with a seed
(at most 20,000) and give the EER in the log. No numbers are expected; they depend on the data. For
comparison: AN4 (54 speakers) in docs/reference/results.md.
"""

from dataclasses import replace
from functools import partial

from likeness.backbones import ECAPA, OrderStatistics, ResNet
from likeness.data import audio, folders
from likeness.frontends import KaldiFbank, spec_augment, train_view
from likeness.losses import ArcFace, SimPLE
from likeness.metrics import eer, min_dcf
from likeness.recipe import Memory, Optim, Range, Recipe, Sampling, Schedule, Verification

LEVEL_DBFS = -26.0
NETWORK = partial(OrderStatistics, dim=128, differences=(2, 8), num_correlated=20)

STATISTICS = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80, cmn=False, high_hz=7000.0),  # mp3 ends at 7.5 kHz
    backbone=NETWORK,
    loss=partial(ArcFace, margin=0.2, scale=30.0),
    # Speeds are new classes.
    items=partial(folders.items, split="train", test_share=0.2, speeds=(0.9, 1.1)),
    measure=Verification(
        trials=partial(folders.trials, split="test", test_share=0.2),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=partial(audio.read, level_dbfs=LEVEL_DBFS, needs_hz=4500.0),
    train_read=audio.read,
    augment=partial(
        train_view,
        seconds=(0.8, 2.5),
        noise_prob=0.1,
        snr_db=(15.0, 30.0),
        level_dbfs=LEVEL_DBFS,
    ),
    mask=partial(spec_augment, prob=0.0),  # off
    sampling=Sampling(batch_size=64),
    optim=Optim(name="adamw", lr=3e-3, weight_decay=1e-2),
    schedule=Schedule(steps=600, warmup_steps=60),
)

RESNET34 = replace(
    STATISTICS,
    frontend=partial(KaldiFbank, num_mels=80, dither=1.0, cmn=True),
    backbone=partial(ResNet, dim=256, width=32),
    items=partial(folders.items, split="train", test_share=0.2),
    read=audio.read,
    train_read=None,
    augment=partial(train_view, seconds=(2.0, 3.0), noise_prob=0.6, gain_prob=0.5),
    optim=Optim(name="sgd", lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, grad_clip=5.0),
    schedule=Schedule(
        steps=20_000, warmup_steps=1000, eval_every=1000, save_every=500, watch="eer"
    ),
    compute=replace(STATISTICS.compute, workers=4),
)

RECIPES = {
    "statistics": STATISTICS,
    "statistics_simple": replace(
        STATISTICS,
        backbone=partial(NETWORK, norm=5.5),
        loss=partial(SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0),
        memory=Memory(2048, 0.99),
    ),
    "resnet34": RESNET34,
    "ecapa": replace(
        RESNET34,
        backbone=partial(ECAPA, dim=192, channels=512),
        optim=Optim(name="adam", lr=1e-3, weight_decay=2e-6, grad_clip=5.0),
    ),
}

_ARCFACE = {"loss.margin": Range(0.05, 0.5), "loss.scale": Range(10.0, 64.0, log=True)}

# What `likeness compare --tune` searches on validation speakers: two settings of each loss.
RANGES = {
    **dict.fromkeys(("statistics", "resnet34", "ecapa"), _ARCFACE),
    "statistics_simple": {"backbone.norm": Range(3.0, 10.0), "loss.b_theta": Range(0.0, 0.4)},
}
