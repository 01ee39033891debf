"""CN-Celeb: WeSpeaker's recipes, Chinese speech of eleven genres.

They train on CN-Celeb 1's dev part and CN-Celeb 2 (2,793 speakers) and test on CN-Celeb 1's eval
part. Without CN-Celeb 2 they train on the first part alone.

    likeness prepare cnceleb --data DATA
        fetches both, over 50 GB; musan and rirs_noises likewise
    likeness train speaker/cnceleb:wespeaker_resnet34 augment.corrupt.musan=DATA/musan
        augment.corrupt.rirs=DATA/RIRS_NOISES/simulated_rirs --data DATA
        --out runs/wespeaker_resnet34
        augment.corrupt=none trains without noise
    likeness train speaker/cnceleb:wespeaker_resnet34_lm init=runs/wespeaker_resnet34
        --data DATA --out runs/resnet34_lm
        with the same folders of noise
    python recipes/speaker/cnceleb.py DATA OUT
        items, trials and enrolment of CNC-Eval-Avg, and the commands that use them

Tests during training enrol a model from one recording of all its utterances (CNC-Eval-Concat). The
published numbers are of CNC-Eval-Avg, where the embeddings of these utterances are averaged. Batch
sizes are those of all processes together. Schedules are in passes over the data, with the rate of a
reference batch, so that sampling.batch_size alone fits them to other GPUs; `train --check` prints
the numbers. A pass is three of WeSpeaker's epochs, because every utterance is there at three
speeds, but for _lm.

Nothing here has been trained by us. Published by WeSpeaker, EER % and minDCF at .01:
examples/cnceleb/v2/README.md at 8a80d2f, the cosine after subtracting the mean of the training part
(`score --subtract-mean`); in the last columns with AS-norm (`score --cohort`, top 300):

                              EER    minDCF      EER    minDCF, AS-norm
    wespeaker_resnet34       7.134    .408      6.747    .367
    wespeaker_resnet34_lm    6.652    .393      6.492    .354
    wespeaker_resnet221      5.965    .362      5.708    .326
    wespeaker_resnet221_lm   5.886    .362      5.655    .330
    wespeaker_ecapa512       8.313    .432      7.644    .390
    wespeaker_ecapa512_lm    8.004    .422      7.417    .379
    wespeaker_ecapa1024      7.879    .420      7.412    .379
    wespeaker_ecapa1024_lm   7.986    .417      7.395    .372

conf/resnet.yaml and ecapa_tdnn.yaml at 895057f, conf/*_lm.yaml at af849e9 and 2f28ccd, run.sh: the
settings of speaker/voxceleb. Differences: those of speaker/voxceleb; and WeSpeaker joins a
speaker's utterances of a genre until each lasts 5 s (local/comb_cn1_cn2.sh), where a crop here
repeats a shorter one.
"""

import sys
from dataclasses import replace
from functools import partial

from _shared import large_margin, resnet34

from likeness import LikenessError
from likeness.backbones import ResNet, WeSpeakerECAPA
from likeness.data import cnceleb
from likeness.recipe import Part, one_sentence, say

RESNET34 = resnet34(partial(cnceleb.items, split="train"), partial(cnceleb.trials))
NETWORKS: dict[str, Part] = {
    "resnet34": RESNET34.backbone,
    "resnet221": partial(ResNet, depth=221, dim=256, width=32),
    "ecapa512": partial(WeSpeakerECAPA, dim=192, channels=512),
    "ecapa1024": partial(WeSpeakerECAPA, dim=192, channels=1024),
}
WESPEAKER = {
    f"wespeaker_{name}": replace(RESNET34, backbone=network) for name, network in NETWORKS.items()
}
RECIPES = {
    **WESPEAKER,
    **{f"{name}_lm": large_margin(recipe, f"runs/{name}") for name, recipe in WESPEAKER.items()},
}


if __name__ == "__main__":
    with one_sentence("cnceleb.py"):
        if len(sys.argv) != 3:
            raise LikenessError("usage: python recipes/speaker/cnceleb.py DATA OUT")
        say(cnceleb.write_lists(sys.argv[1], sys.argv[2]))
