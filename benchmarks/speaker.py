"""The speaker back-end: embeddings per second from files, what the loader gives a network, and a
whole evaluation after the embeddings.

    OMP_NUM_THREADS=1 python benchmarks/speaker.py [--data ../shared/data] [--files 96] [--repeats
    3]

Real speech (CMU AN4, 2.9 s a file in the mean), random weights: what is timed does not depend on
them. CPU seconds (process time) of one thread, the least of the repeats; all rows of a table in one
run, each beginning with a warm-up. "cosine" is the least cosine between ours and the peer's
embeddings of a file. Peers: WeSpeaker's bin/extract.py restated (it is no package): torchaudio's
Kaldi fbank, mean subtraction, batch 1 ("batch_size of test set must be 1 !!!"), files through
soundfile as torchaudio.load no longer reads without TorchCodec. SpeechBrain's own Fbank,
InputNormalization and ECAPA_TDNN, batch 1 as in its extraction, and in padded batches of 16, which
change its embeddings. The networks and weights are the same on both sides. Limit: the network alone
on features that are in memory, in the best of batch 1, 4 and 16. Loader: reading, cropping and
augmenting 2 s views (noise off) against the network's consumption of features, forward and
backward, batch 32. Evaluation: 580,000 trials over 5,000 embeddings of 256 dims, AS-norm with a
cohort of 6,000 over the top 300, EER and minDCF.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from eval.normalization import as_norm
from eval.similarity import pairs
from eval.verification import verification_metrics
from modalities.speaker import an4, audio
from modalities.speaker.augment import train_view
from modalities.speaker.features import WESPEAKER_FBANK
from modalities.speaker.speechbrain_fbank import SpeechBrainFbank
from toolkit.backbones.ecapa import ECAPA
from toolkit.backbones.resnet import ResNet34
from toolkit.backbones.torchaudio_cpu import import_torchaudio
from toolkit.data.batch import Item
from toolkit.models.embed import TorchEmbedder, embed

TRIALS, ITEMS, DIM, COHORT, TOP_N = 580_000, 5_000, 256, 6_000, 300


def in_turn(works: Sequence[Callable[[], Any]], repeats: int) -> list[tuple[float, Any]]:
    """Least CPU seconds and the result of each; they take turns, so that a busy moment of the
    machine does not hit one of them only.
    """
    seconds: list[list[float]] = [[] for _ in works]
    found = [work() for work in works]
    for _ in range(repeats):
        for work, own in zip(works, seconds, strict=True):
            started = time.process_time()
            work()
            own.append(time.process_time() - started)
    return list(zip(map(min, seconds), found, strict=True))


def least(work: Callable[[], Any], repeats: int) -> float:
    return in_turn([work], repeats)[0][0]


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


@torch.no_grad()
def wespeaker(network: nn.Module, items: list[Item], fbank: Callable[..., Tensor]) -> np.ndarray:
    """bin/extract.py with dataset/processor.py compute_fbank (dither 0) and apply_cmvn."""
    import soundfile

    rows = []
    for item in items:
        wave, rate_hz = soundfile.read(item.path, dtype="float32")
        feats = fbank(
            torch.from_numpy(wave)[None] * (1 << 15),
            num_mel_bins=80,
            frame_length=25,
            frame_shift=10,
            dither=0.0,
            sample_frequency=rate_hz,
            window_type="hamming",
            use_energy=False,
        )
        rows.append(network((feats - feats.mean(dim=0))[None])[0].numpy())
    return np.stack(rows)


@torch.no_grad()
def speechbrain(
    network: nn.Module, items: list[Item], batch_size: int, parts: tuple[nn.Module, nn.Module]
) -> np.ndarray:
    """encode_batch of SpeechBrain's EncoderClassifier, files in their order, padded to the longest
    of a batch.
    """
    import soundfile

    fbank, norm = parts
    rows = []
    for start in range(0, len(items), batch_size):
        waves = [
            torch.from_numpy(soundfile.read(item.path, dtype="float32")[0])
            for item in items[start : start + batch_size]
        ]
        lengths = torch.tensor([len(one) for one in waves]) / max(len(one) for one in waves)
        inputs = nn.utils.rnn.pad_sequence(waves, batch_first=True)
        rows.append(network(norm(fbank(inputs), lengths), lengths)[:, 0].numpy())
    return np.concatenate(rows)


def network_alone(embedder: TorchEmbedder, items: list[Item]) -> list[Callable[[], None]]:
    """The network on ready features of the files' mean length, so many times as there are files, in
    batches of 1, 4 and 16.
    """
    samples = int(np.mean([len(audio.read(one)) for one in items]))
    features = embedder.frontend(torch.randn(16, samples) * 0.1)[0]

    @torch.no_grad()
    def run(batch: int) -> None:
        for _ in range(0, len(items), batch):
            embedder.backbone(features[:batch])

    return [partial(run, batch) for batch in (1, 4, 16)]


def cosine(a: np.ndarray, b: np.ndarray) -> str:
    return f"{min((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)):.6f}"


def extraction_rows(items: list[Item], repeats: int) -> None:
    torchaudio = import_torchaudio()
    from speechbrain.lobes.features import Fbank
    from speechbrain.processing.features import InputNormalization

    kaldi = torchaudio.compliance.kaldi.fbank
    parts = (
        Fbank(n_mels=80).eval(),
        InputNormalization(norm_type="sentence", std_norm=False).eval(),
    )
    print(
        "| whole extraction, utterances/s | ours | peer | limit | ours/limit | ours/peer | cosine "
        "|\n|---|---|---|---|---|---|---|"
    )
    resnet = TorchEmbedder(WESPEAKER_FBANK(), ResNet34(80)).eval()
    backbone = ECAPA(80, channels=512, mfa_channels=1536)
    ecapa = TorchEmbedder(SpeechBrainFbank(), backbone).eval()
    compared: list[tuple[str, TorchEmbedder, dict[str, Callable[[], Any]]]] = [
        (
            "ResNet34 (6.6 M)",
            resnet,
            {"WeSpeaker, batch 1": partial(wespeaker, resnet.backbone, items, kaldi)},
        ),
        (
            "ECAPA c512, SpeechBrain's",
            ecapa,
            {
                f"SpeechBrain, batch {size}": partial(
                    speechbrain, cast(nn.Module, backbone.network), items, size, parts
                )
                for size in (1, 16)
            },
        ),
    ]
    for name, embedder, peers in compared:
        works: list[Callable[[], Any]] = [
            partial(embed, embedder, items, audio.read),
            *peers.values(),
            *network_alone(embedder, items),
        ]
        (seconds, (found, _)), *rest = in_turn(works, repeats)
        limit = min(one for one, _ in rest[len(peers) :])
        for peer_name, (peer, theirs) in zip(peers, rest, strict=False):
            ratios = f"{limit / seconds:.2f}", f"{peer / seconds:.2f}", cosine(found.matrix, theirs)
            row(
                f"{name}, {len(items)} files; {peer_name}",
                *(f"{len(items) / one:.1f}" for one in (seconds, peer, limit)),
                *ratios,
            )


def step(network: nn.Module, features: Tensor) -> None:
    network.train()(features).sum().backward()


def loader_rows(items: list[Item], repeats: int) -> None:
    print(
        "\n| loader against network, 2 s views | loader, views/s | network, views/s | "
        "loader/network |\n|---|---|---|---|"
    )

    def load() -> None:
        for k, item in enumerate(items):
            rng = np.random.default_rng(k)
            train_view(audio.read(item), rng, np.random.default_rng(0), seconds=(2.0, 2.0))

    views = len(items) / least(load, repeats)
    front, waves = WESPEAKER_FBANK().eval(), torch.randn(32, 32_000) * 0.1
    features = front(waves)[0]
    networks: dict[str, nn.Module] = {
        "ResNet34": ResNet34(80),
        "ECAPA c512": ECAPA(80, channels=512, mfa_channels=1536),
    }
    for name, network in networks.items():
        taken = 32 / least(partial(step, network, features), max(1, repeats - 2))
        row(
            f"{name}, forward and backward, batch 32",
            f"{views:.0f}",
            f"{taken:.2f}",
            f"{views / taken:.0f}",
        )


def evaluation_row(repeats: int) -> None:
    rng = np.random.default_rng(0)
    held, cohort = (
        rng.standard_normal((ITEMS, DIM), dtype=np.float32),
        rng.standard_normal((COHORT, DIM), dtype=np.float32),
    )
    i, j = rng.integers(0, ITEMS, (2, TRIALS))
    target = (i * 7919 + j * 104729) % 5 == 0

    def evaluate() -> None:
        scores = as_norm(pairs(held, held, i, j), held, held, cohort, top_n=TOP_N, i=i, j=j)
        verification_metrics(scores[target] + 0.1, scores[~target], fars=())

    seconds = least(evaluate, repeats)
    limit = least(
        lambda: (held @ held.T, held @ cohort.T, np.sort(rng.standard_normal(TRIALS))), repeats
    )
    print(
        "\n| embeddings to EER | ours, CPU s | limit: two products, one sort | ours/limit "
        "|\n|---|---|---|---|"
    )
    row(
        "580,000 trials: cosine, AS-norm over the top 300 of 6,000, EER, minDCF",
        f"{seconds:.2f}",
        f"{limit:.2f}",
        f"{seconds / limit:.2f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--files", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "set OMP_NUM_THREADS=1 before Python starts: CPU time of many threads is not "
            "comparable",
            file=sys.stderr,
        )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = an4.items(given.data, split="all")
    items = every[:: max(1, len(every) // given.files)][: given.files]
    extraction_rows(items, given.repeats)
    loader_rows(items, given.repeats)
    evaluation_row(given.repeats)


if __name__ == "__main__":
    main()
