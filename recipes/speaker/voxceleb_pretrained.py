"""VoxCeleb with w2v-BERT 2.0 and WavLM in WeSpeaker's three stages.

They train on VoxCeleb2 dev and test on VoxCeleb1-O, as speaker/voxceleb does, whose head says how
to prepare the data, how to test on -E and -H, and how folders of noise are named.

    likeness train speaker/voxceleb_pretrained:w2vbert_lora augment.corrupt.musan=DATA/musan
        augment.corrupt.rirs=DATA/RIRS_NOISES/simulated_rirs --data DATA --out runs/w2vbert_lora
        adapters on the published network, which is fetched from the Hugging Face hub (extra hub);
        init=hub:FOLDER takes a copy
    likeness train speaker/voxceleb_pretrained:w2vbert_full init=runs/w2vbert_lora
        augment.corrupt.musan=... augment.corrupt.rirs=... --data DATA --out runs/w2vbert_full
        the whole network, with the adapters merged into it
    likeness train speaker/voxceleb_pretrained:w2vbert_lm init=runs/w2vbert_full
        --data DATA --out runs/w2vbert_lm
        a large margin; wavlm_frozen, wavlm_full and wavlm_lm likewise, all with noise

Batch sizes are those of WeSpeaker's eight GPUs together. compute.accumulate=8 passes a batch
through the network in eight pieces, where the memory of one GPU is too small. Of another batch size
the rates of wavlm_* follow (optim.reference_batch); those of w2vbert_* stay, as WeSpeaker's do.

Nothing here has been trained by us. Published by WeSpeaker, EER % on VoxCeleb1-O, E and H, cleaned:
examples/voxceleb/v2/README.md at 7d7b707, by the cosine; in the last columns with AS-norm:

                       O      E      H        O      E      H, AS-norm
    w2vbert_lora     .532   .622  1.241     .447   .596  1.214
    w2vbert_full     .494   .587  1.208     .452   .565  1.171
    w2vbert_lm       .377   .512  1.062     .388   .495  1.017
    wavlm_frozen     .595   .719  1.501     .548   .656  1.355
    wavlm_full       .542   .635  1.355     .521   .594  1.237
    wavlm_lm         .521   .626  1.344     .495   .588  1.247

The authors of the first (Li et al. 2025, arXiv 2510.04213; ZXHY-82/w2v-BERT-2.0_SV, README.md at
1081303) state .31, .55 and 1.17, then .30, .53 and 1.15, then .23, .46 and 1.03 for these stages.

w2vbert_*, conf/w2vbert_s1_lora.yaml and w2vbert_s2_ft.yaml at 8f53b64, w2vbert_s3_lmft.yaml at
7d7b707, run_w2v.sh: an adapter of 128 for each of the 25 layers, ASP, 256 dimensions.
- lora: rank 64, alpha 128 on queries and values; AdamW, 8 x 64 = 512 a step, rate 1e-4 and weight
  decay 1e-4; 15 epochs, of which 5 warm up and the last 5 have a tenth of the rate; 3 s, ArcFace
  with margin .2 and scale 32.
- full: rate 1e-5 -> 5e-6 along a cosine over 2 of 4 epochs.
- lm: 8 x 32 = 256, the same rates over 1 of 2 epochs; 6 s, margin .5, no noise.

wavlm_*, conf/ecapa_tdnn_WavLM_frozen.yaml at ee55699, _joint_ft.yaml and _joint_lmft.yaml at
b4759ef, run_wavlm.sh: WavLM Large, the weighted sum of its 25 layers less the mean over time,
ECAPA-TDNN with global context and 512 channels, 192 dimensions.
- frozen: 8 x 256 = 2,048 a step, rate .1 for 64, so 3.2 -> 3.2e-4; 150 epochs, warm-up of 6; 3 s;
  InterTopK with three sub-centres, whose margin grows to .2 from epoch 20 to 40; the mean of the
  last 10 epochs.
- full: 8 x 64 = 512, 8e-3 -> 2e-3, 20 epochs, warm-up of 1, margin .2; the mean of the last 3.
- lm: 8 x 32 = 256, 4e-4 -> 1e-4, 20 epochs, warm-up of 1; 6 s, margin .5, no penalty.

Differences: as in speaker/voxceleb; no layer is left out at random; utterances that are too short
for a crop are repeated (WeSpeaker leaves out those under 2 s, in w2vbert_lm those under 5 s).
"""

from dataclasses import replace
from functools import partial

from _shared import large_margin, resnet34

from likeness.backbones import HubSpeech
from likeness.data import voxceleb
from likeness.frontends import WESPEAKER_VIEW, StackedFbank, UnitWave, train_view
from likeness.losses import ArcFace, InterTopK
from likeness.recipe import LoRA, Optim, Sampling, Schedule, Tuning, cosine, exponential, multistep

# What sizes facebook/w2v-bert-2.0 and microsoft/wavlm-large. Dropout is that of WavLM-Large.pt.
W2VBERT = """{"model_type": "wav2vec2-bert", "hidden_size": 1024, "num_hidden_layers": 24,
"num_attention_heads": 16, "intermediate_size": 4096, "feature_projection_input_dim": 160,
"hidden_act": "swish", "conv_depthwise_kernel_size": 31, "position_embeddings_type": "relative_key",
"left_max_position_embeddings": 64, "right_max_position_embeddings": 8}"""
WAVLM = """{"model_type": "wavlm", "hidden_size": 1024, "num_hidden_layers": 24,
"num_attention_heads": 16, "intermediate_size": 4096, "feat_extract_norm": "layer",
"do_stable_layer_norm": true, "conv_bias": false, "num_buckets": 320, "max_bucket_distance": 800,
"hidden_dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
"feat_proj_dropout": 0.0}"""

RESNET34 = resnet34(
    partial(voxceleb.items, corpus="voxceleb2", split="dev"),
    partial(voxceleb.trials, protocol="O_cleaned"),
)

W2VBERT_LORA = replace(
    RESNET34,
    frontend=StackedFbank,
    backbone=partial(HubSpeech, config=W2VBERT, pooling="AdapterMFA", dim=256),
    loss=partial(ArcFace, margin=0.2, scale=32.0),
    augment=partial(WESPEAKER_VIEW, seconds=(3.015, 3.015)),
    sampling=Sampling(batch_size=512),
    optim=Optim(name="adamw", lr=1e-4, weight_decay=1e-4),
    tuning=Tuning(lora=LoRA(rank=64, alpha=128.0, targets=("linear_q", "linear_v"))),
    schedule=Schedule(
        steps=15,
        epochs=5,
        warmup_steps=5,
        decay=partial(multistep, at=(10 / 15,)),
        eval_every=1,
        save_every=1,
    ),
    init="hub:facebook/w2v-bert-2.0",
)
W2VBERT_FULL = replace(
    W2VBERT_LORA,
    optim=replace(W2VBERT_LORA.optim, lr=1e-5),
    tuning=Tuning(),
    schedule=Schedule(
        steps=4,
        epochs=4 / 3,
        decay=partial(cosine, stop=0.5, end=0.5),
        eval_every=1,
        save_every=1,
    ),
    init="runs/w2vbert_lora",
)
W2VBERT_LM = replace(
    large_margin(W2VBERT_FULL, "runs/w2vbert_full"),
    augment=partial(train_view, seconds=(6.015, 6.015)),
    sampling=Sampling(batch_size=256),
    optim=W2VBERT_FULL.optim,
    schedule=replace(W2VBERT_FULL.schedule, steps=2, epochs=2),
)

TOPK = partial(InterTopK, num_subcentres=3, hardest=5, penalty=0.06, margin=0.2, scale=32.0)
WAVLM_FROZEN = replace(
    RESNET34,
    frontend=UnitWave,
    backbone=partial(HubSpeech, config=WAVLM, pooling="ECAPA_GLOB"),
    loss=partial(TOPK, warmup_steps=(19, 39), ramp="exponential"),
    augment=partial(WESPEAKER_VIEW, seconds=(3.0, 3.0)),
    sampling=Sampling(batch_size=2_048),
    tuning=Tuning(freeze=("backbone.network",), average_last=10),
    schedule=replace(RESNET34.schedule, decay=partial(exponential, end=1e-4)),
    init="hub:microsoft/wavlm-large",
)
WAVLM_FULL = replace(
    WAVLM_FROZEN,
    loss=TOPK,
    sampling=Sampling(batch_size=512),
    optim=replace(RESNET34.optim, lr=1e-3),
    tuning=Tuning(average_last=3),
    schedule=Schedule(
        steps=20,
        epochs=20 / 3,
        warmup_steps=1,
        decay=partial(exponential, end=0.25),
        eval_every=1,
        save_every=1,
    ),
    init="runs/wavlm_frozen",
)
WAVLM_LM = replace(
    large_margin(WAVLM_FULL, "runs/wavlm_full"),
    # the penalty is removed, the sub-centres go on
    loss=partial(InterTopK, num_subcentres=3, hardest=0, margin=0.5, scale=32.0),
    augment=partial(WESPEAKER_VIEW, seconds=(6.0, 6.0)),
    sampling=Sampling(batch_size=256),
    schedule=replace(WAVLM_FULL.schedule, epochs=20),
)

RECIPES = {
    "w2vbert_lora": W2VBERT_LORA,
    "w2vbert_full": W2VBERT_FULL,
    "w2vbert_lm": W2VBERT_LM,
    "wavlm_frozen": WAVLM_FROZEN,
    "wavlm_full": WAVLM_FULL,
    "wavlm_lm": WAVLM_LM,
}
