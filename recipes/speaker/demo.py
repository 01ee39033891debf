"""The demo: a verifier for voices that it never heard, trained in half a minute on two cores. Everything is synthetic (modalities/synthetic.py).

    likeness demo --only speaker --out demo

40 synthetic speakers to train, 20 others to test; even and odd utterances come from two sessions, whose channels differ. Order statistics of the log
filterbank trained with ArcFace are set against the cosine of its mean and standard deviation. The lines printed at the end redo each step by hand.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch

from eval import embeddings, similarity
from eval import trials as trial_lists
from eval.evaluate import evaluate_files
from eval.types import Embeddings
from eval.verification import eer, min_dcf
from modalities import synthetic
from modalities.speaker import audio, folders
from modalities.speaker.augment import train_view
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.pooling import statistics
from toolkit.backbones.statistics import OrderStatistics
from toolkit.batch import Item
from toolkit.checkpoint import load_model
from toolkit.embed import embed
from toolkit.losses.margin import ArcFace
from toolkit.recipe import Optim, Recipe, Schedule
from toolkit.sampling import Sampling
from toolkit.train import fit

NUM_SPEAKERS, NUM_UTTERANCES = 60, 10

RECIPES = {
    "arcface": Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=80, cmn=False),
        backbone=partial(OrderStatistics, dim=64, num_directions=64),
        loss=partial(ArcFace, margin=0.2, scale=32.0),
        items=partial(folders.items, split="train", test_share=1 / 3),
        trials=partial(folders.trials, split="test", test_share=1 / 3),
        read=audio.read,
        augment=partial(train_view, seconds=(0.8, 2.0), gain_prob=0.5),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
        sampling=Sampling(batch_size=64, items_per_class=2),
        optim=Optim(name="adamw", lr=2e-3, weight_decay=1e-2),
        schedule=Schedule(steps=400, warmup_steps=40, save_every=200),
        threads=1,
        cache=True,
    )
}


def baseline(items: list[Item]) -> Embeddings:
    """Mean and standard deviation of each utterance's log filterbank: what a cosine makes of raw features."""
    fbank = KaldiFbank(num_mels=80, cmn=False)
    rows = [statistics(fbank(torch.from_numpy(audio.read(item))[None])[0].transpose(1, 2))[0].numpy() for item in items]
    return Embeddings(tuple(item.id for item in items), np.stack(rows), {"similarity": "cosine", "modality": "speaker"})


def main(out: Path) -> None:
    """Synthesise, train, embed, score, evaluate, report; all files stay in `out`."""
    run, voices = out / "run", out / "voices"
    if run.exists():
        raise ValueError(f"{out} already holds a demo; choose another --out")
    print(f"1/4 {NUM_SPEAKERS} synthetic speakers x {NUM_UTTERANCES} utterances into {voices}")
    synthetic.write_voices(voices, num_speakers=NUM_SPEAKERS, num_utterances=NUM_UTTERANCES)
    print("2/4 training on two thirds of the speakers")
    model = load_model(fit(RECIPES["arcface"], data=voices, out=run))
    print("3/4 embedding and scoring the other third")
    items, trials = folders.trials(voices, split="test", test_share=1 / 3)
    (out / "items.txt").write_text("".join(f"{item.id} {item.path.relative_to(voices)}\n" for item in items), encoding="utf-8")
    trial_lists.write_trials(out / "trials.txt", trials)
    (out / "scores").mkdir()
    ours, _ = embed(model.embedder, items, model.read, meta=model.meta)
    for name, embedded in (("arcface", ours), ("raw-features", baseline(items))):
        embeddings.write(out / f"{name}.npz", embedded)
        trial_lists.write_scores(out / "scores" / f"{name}.txt", trials, similarity.score_trials(trials, embedded))
    print("4/4 evaluating")
    scores = [out / "scores" / "arcface.txt", out / "scores" / "raw-features.txt"]
    text = evaluate_files(
        scores,
        report_folder=out / "report",
        json_file=out / "results.json",
        audio_root=voices,
        command=f"likeness evaluate {scores[0]} {scores[1]} --report {out / 'report'}",
    )
    print(text)
    likeness = sys.argv[0] if Path(sys.argv[0]).name == "likeness" else "likeness"  # as it was called, .venv/bin/likeness say
    print(
        f"""
Made: the model {run}, raw embeddings {out / "arcface.npz"}, scores {scores[0]}, the report {out / "report" / "index.html"}
Next, the same by hand, on the same files:
  {likeness} embed --model {run} --items {out / "items.txt"} --root {voices} --out mine.npz
  {likeness} score --trials {out / "trials.txt"} --embeddings mine.npz --out mine.txt
  {likeness} evaluate mine.txt --report mine-report
and on your own recordings, DATA/SPEAKER/*.wav:
  {likeness} train recipes/speaker/folders.py --data DATA --out runs/mine"""
    )
