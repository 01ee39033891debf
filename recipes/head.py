"""A head on the embeddings of any model: a linear or small network, in minutes on a CPU.

The model stays as it is, and its embeddings are made once. The head adapts them to the speakers,
faces or products of one domain:

    likeness embed --model MODEL --items items.txt --root recordings --out embeddings.npz
    likeness train head --data embeddings.npz --out runs/head
        one linear layer, which starts as the identity
    likeness train head:residual --data embeddings.npz --out runs/head
        one hidden layer beside the identity (supcon: the linear layer, by pairs of a batch)
    likeness train head:score_norm --data embeddings.npz --out runs/head
        score normalisation by the subjects of the file, without training: its dot products are
        normalised scores, and no cohort is needed
    likeness export MODEL --head runs/head --out runs/adapted
        one model of both, for `embed`, `export`, `serve` and `init=`

--data is the embeddings file, or a folder with it and perhaps a list of subjects. The subject of an
embedding is the first part of an id such as SUBJECT/1.wav, or stands in subjects.txt or utt2spk in
that folder, in lines `id subject` (or: items.subjects=FILE measure.trials.subjects=FILE). Four
subjects or more are needed, of which a fifth is held out and never trained on; trials among them
are drawn with a seed (at most 20,000) and give the EER in the log. backbone.dim=N gives another
size.

Embeddings made with --flip, --crops or --chunk-seconds are refused, because the head would get each
part by itself. Any loss will do: `likeness recipes --copy head mine.py` gives a copy to edit, and
the recipe head_losses compares twenty. No numbers are expected, because they depend on the data.
docs/reference/results.md has those of score_norm between corpora of voices.
"""

from dataclasses import replace
from functools import partial

from likeness.backbones import Head, ScoreNorm
from likeness.data import rows
from likeness.losses import ArcFace, SupCon
from likeness.metrics import eer, min_dcf
from likeness.recipe import Optim, Recipe, Sampling, Schedule, Verification

LINEAR = Recipe(
    modality="embedding",
    frontend=rows.Vectors,
    backbone=Head,
    loss=partial(ArcFace, margin=0.2, scale=30.0),
    items=partial(rows.items, split="train", test_share=0.2),
    measure=Verification(
        trials=partial(rows.trials, split="test", test_share=0.2),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=rows.read,
    sampling=Sampling(batch_size=64),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2, proxy_lr_scale=10.0),
    schedule=Schedule(steps=1000, warmup_steps=100, eval_every=200),
)

RECIPES = {
    "linear": LINEAR,
    "residual": replace(LINEAR, backbone=partial(Head, hidden=256)),
    "supcon": replace(
        LINEAR,
        loss=partial(SupCon, temperature=0.1),
        sampling=Sampling(batch_size=64, items_per_class=4),
    ),
    # Nothing is trained: its constants are estimated before the first step, which changes nothing.
    "score_norm": replace(
        LINEAR,
        backbone=ScoreNorm,
        similarity="dot",
        estimate_views=2,  # one leaves out what does not fill a batch of 64
        optim=replace(LINEAR.optim, lr=0.0),
        schedule=Schedule(steps=1),
    ),
}
