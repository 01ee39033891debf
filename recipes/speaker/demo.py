"""The demo: a verifier for synthetic voices, in half a minute.

    likeness demo --only speaker --out demo

Everything is synthetic (modalities/synthetic.py) and runs on one core. 40 speakers train, 20 others
test; even and odd utterances come from two sessions, whose channels differ. Order statistics of the
log filterbank trained with ArcFace are set against the cosine of its mean and standard deviation.
The lines printed at the end redo each step by hand.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from likeness.backbones import OrderStatistics
from likeness.data import Item, audio, folders, synthetic
from likeness.frontends import KaldiFbank, statistics, train_view
from likeness.losses import ArcFace
from likeness.metrics import eer, min_dcf
from likeness.recipe import Compute, Optim, Recipe, Sampling, Schedule, Verification
from likeness.training import demo

NUM_SPEAKERS, NUM_UTTERANCES = 60, 10

RECIPES = {
    "arcface": Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=80, cmn=False),
        backbone=partial(OrderStatistics, dim=64, num_directions=64),
        loss=partial(ArcFace, margin=0.2, scale=32.0),
        items=partial(folders.items, split="train", test_share=1 / 3),
        measure=Verification(
            trials=partial(folders.trials, split="test", test_share=1 / 3),
            metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
        ),
        read=audio.read,
        augment=partial(train_view, seconds=(0.8, 2.0), gain_prob=0.5),
        sampling=Sampling(batch_size=64, items_per_class=2),
        optim=Optim(name="adamw", lr=2e-3, weight_decay=1e-2),
        schedule=Schedule(steps=400, warmup_steps=40, save_every=200),
        compute=Compute(threads=1, cache=True),
    )
}


def baseline(items: list[Item]) -> np.ndarray:
    """Mean and standard deviation of each utterance's log filterbank: what a cosine makes of raw
    features.
    """
    fbank = KaldiFbank(num_mels=80, cmn=False)
    rows = [
        statistics(fbank(torch.from_numpy(audio.read(item))[None])[0].transpose(1, 2))[0].numpy()
        for item in items
    ]
    return np.stack(rows)


def main(out: Path) -> None:
    """Synthesise, train, embed, score, evaluate, report; all files stay in `out`."""
    demo.run(
        RECIPES["arcface"],
        write=partial(
            synthetic.write_voices, num_speakers=NUM_SPEAKERS, num_utterances=NUM_UTTERANCES
        ),
        contents=f"{NUM_SPEAKERS} synthetic speakers x {NUM_UTTERANCES} utterances",
        baseline=("filterbank", baseline),
        out=out,
        own_data="train speaker/folders --data DATA --out runs/mine      DATA/SPEAKER/*.wav",
    )
