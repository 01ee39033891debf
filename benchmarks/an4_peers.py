"""The peers of benchmarks/an4.py on the same folds: LDA on filterbank statistics, and SpeechBrain's
ECAPA-TDNN with the settings of its VoxCeleb recipe.

    python benchmarks/an4_peers.py lda --data ../shared/data --out runs/an4/lda
    python benchmarks/an4_peers.py speechbrain --data ../shared/data --out runs/an4/speechbrain
    [--cmn] python benchmarks/an4_peers.py speechbrain --fsdd --steps 300 --data ../shared/data
    --out runs/fsdd/speechbrain

Each writes OUT/fold{0..4}.txt score files (resumable: a fold that is there is not run again).
SpeechBrain: recipes/VoxCeleb/SpeakerRec/hparams/train_ecapa_tdnn.yaml of 1.1: Fbank 80, sentence
mean normalisation (--cmn; without it better here, since one session per speaker makes the channel a
cue), additive angular margin .2 scale 30, Adam 1e-3 with weight decay 2e-6 and a triangular cyclic
rate, frequency and chunk drop and noise. Fitted to the data's size as ../shared/data/README.md
found best: 256 channels instead of 1024 and one augmentation per batch.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from eval.formats.trials import write_scores
from eval.similarity import score_trials
from eval.types import Embeddings
from modalities.speaker import an4, audio, fsdd
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.pooling import statistics
from toolkit.backbones.torchaudio_cpu import import_torchaudio
from toolkit.data.batch import label_numbers

NUM_FOLDS = 5


def lda(data: Path, fold: int) -> Embeddings:
    """Mean and standard deviation of 80 log filterbank energies, centred on the training mean, LDA
    (eigen, shrinkage .1).
    """
    fbank = KaldiFbank(num_mels=80, cmn=False)

    def rows(split: str) -> tuple[list[str], np.ndarray, list[str]]:
        items = an4.items(data, split=split, fold=fold)
        made = [
            statistics(fbank(torch.from_numpy(audio.read(item))[None])[0].transpose(1, 2))[
                0
            ].numpy()
            for item in items
        ]
        return [item.id for item in items], np.stack(made), [str(item.label) for item in items]

    _, train, labels = rows("train")
    ids, test, _ = rows("test")
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1).fit(
        train - train.mean(0), labels
    )
    return Embeddings(tuple(ids), model.transform(test - train.mean(0)).astype(np.float32))


def speechbrain(
    data: Path,
    fold: int,
    *,
    cmn: bool,
    steps: int,
    seed: int,
    dataset: Any = an4,
    crop_seconds: float = 2.0,
) -> Embeddings:
    """SpeechBrain's own classes throughout: Fbank, InputNormalization, augmenters, ECAPA_TDNN,
    AdditiveAngularMargin.
    """
    import_torchaudio()
    from speechbrain.augment.time_domain import AddNoise, DropChunk, DropFreq
    from speechbrain.lobes.features import Fbank
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper
    from speechbrain.processing.features import InputNormalization

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    items = dataset.items(data, split="train", fold=fold)
    names, labels = label_numbers(items)
    waves = [audio.read(item) for item in items]
    features, normalise = Fbank(n_mels=80), InputNormalization(norm_type="sentence", std_norm=False)
    network = ECAPA_TDNN(
        80,
        lin_neurons=192,
        channels=[256, 256, 256, 256, 768],
        kernel_sizes=[5, 3, 3, 3, 1],
        dilations=[1, 2, 3, 4, 1],
        attention_channels=128,
    )
    classifier = Classifier(192, out_neurons=len(names))
    criterion = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30))
    augmenters = [
        AddNoise(snr_low=0, snr_high=15),
        DropFreq(drop_freq_count_low=1, drop_freq_count_high=3),
        DropChunk(drop_length_low=1000, drop_length_high=2000),
        None,
    ]
    optimizer = torch.optim.Adam(
        [*network.parameters(), *classifier.parameters()], lr=1e-3, weight_decay=2e-6
    )
    schedule = torch.optim.lr_scheduler.CyclicLR(
        optimizer, base_lr=1e-8, max_lr=1e-3, step_size_up=steps // 2, cycle_momentum=False
    )

    def encode(wave: torch.Tensor) -> torch.Tensor:
        made = features(wave)
        made = normalise(made, torch.ones(len(wave))) if cmn else made
        return network(made)

    started = time.perf_counter()
    network.train()
    for step in range(steps):
        chosen = rng.choice(len(items), 32, replace=False)
        batch = torch.from_numpy(
            np.stack([audio.crop(waves[i], round(16_000 * crop_seconds), rng) for i in chosen])
        )
        augment = augmenters[rng.integers(len(augmenters))]
        if isinstance(augment, DropFreq):
            batch = augment(batch)
        elif augment is not None:
            batch = augment(batch, torch.ones(len(batch)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            embedded = encode(batch)
        loss = criterion(classifier(embedded.float()), torch.from_numpy(labels[chosen])[:, None])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(
                f"  fold {fold} step {step} loss {float(loss.detach()):.3f} "
                f"{time.perf_counter() - started:.0f} s",
                flush=True,
            )
    network.eval()
    tested = dataset.items(data, split="test", fold=fold)
    with torch.no_grad():
        rows = np.stack(
            [encode(torch.from_numpy(audio.read(item))[None])[0, 0].numpy() for item in tested]
        )
    return Embeddings(tuple(item.id for item in tested), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("system", choices=["lda", "speechbrain"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cmn", action="store_true")
    parser.add_argument(
        "--fsdd",
        action="store_true",
        help="FSDD's fifteen folds instead, crops of .4 s (speechbrain only)",
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    dataset: Any = fsdd if given.fsdd else an4
    for fold in range(fsdd.num_folds(given.data) if given.fsdd else NUM_FOLDS):
        file = given.out / f"fold{fold}.txt"
        if file.exists():
            continue
        _, trials = dataset.trials(given.data, fold=fold)
        if given.system == "lda":
            embeddings = lda(given.data, fold)
        else:
            seconds = 0.4 if given.fsdd else 2.0
            embeddings = speechbrain(
                given.data,
                fold,
                cmn=given.cmn,
                steps=given.steps,
                seed=given.seed,
                dataset=dataset,
                crop_seconds=seconds,
            )
        write_scores(file, trials, score_trials(trials, embeddings))
        print(f"{file}", flush=True)


if __name__ == "__main__":
    main()
