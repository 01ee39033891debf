"""Measures extraction from files of speech.

    OMP_NUM_THREADS=1 python benchmarks/speaker.py [--data ../shared/data] [--files 96]
        [--repeats 3]

Measures: CPU seconds of one thread, the least of the repeats; all rows of a table in one run, each
    beginning with a warm-up.
    Embeddings per second from files of real speech (CMU AN4, 2.9 s a file in the mean)
    with random weights, because what is timed does not depend on them. "cosine" is the least cosine
    between our embedding and the peer's of the same file.
Peers: WeSpeaker's bin/extract.py, restated because it is no package: torchaudio's Kaldi fbank, mean
    subtraction, batch 1 ("batch_size of test set must be 1 !!!"), files through soundfile, since
    torchaudio.load no longer reads without TorchCodec. SpeechBrain's own Fbank, InputNormalization
    and ECAPA_TDNN in padded batches of 16, which change its embeddings. The networks and weights
    are the same on both sides.
Limit: the network alone on features that are in memory, in the best of batch 1, 4 and 16.
Needs: speechbrain and torchaudio, which come with Likeness, and an4/ in the folder of --data.
Takes: five minutes of one core.
Gives: the table "Embedding speech" of docs/reference/performance.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from performance import ROOT, in_turn, parser_of, row, table
from torch import Tensor, nn

from likeness import Item
from likeness.backbones import ECAPA, ResNet
from likeness.data import an4, audio
from likeness.frontends import SpeechBrainFbank
from likeness.modalities.speaker.features import WESPEAKER_FBANK
from likeness.toolkit.backbones.ecapa import import_torchaudio
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder


@torch.no_grad()
def wespeaker(network: nn.Module, items: list[Item], fbank: Callable[..., Tensor]) -> np.ndarray:
    """WeSpeaker's embeddings: bin/extract.py with compute_fbank (dither 0) and apply_cmvn."""
    import soundfile

    rows = []
    for item in items:
        wave, rate_hz = soundfile.read(item.path, dtype="float32")
        samples = torch.from_numpy(wave)[None] * (1 << 15)
        settings = {"num_mel_bins": 80, "frame_length": 25, "frame_shift": 10, "dither": 0.0}
        settings |= {"window_type": "hamming", "use_energy": False, "sample_frequency": rate_hz}
        feats = fbank(samples, **settings)
        rows.append(network((feats - feats.mean(dim=0))[None])[0].numpy())
    return np.stack(rows)


@torch.no_grad()
def speechbrain(
    network: nn.Module, items: list[Item], batch_size: int, parts: tuple[nn.Module, nn.Module]
) -> np.ndarray:
    """SpeechBrain's embeddings: encode_batch of its EncoderClassifier.

    The files come in their order, padded to the longest of a batch.
    """
    import soundfile

    fbank, norm = parts
    rows = []
    for start in range(0, len(items), batch_size):
        paths = [item.path for item in items[start : start + batch_size]]
        waves = [torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in paths]
        lengths = torch.tensor([len(wave) for wave in waves]) / max(map(len, waves))
        inputs = nn.utils.rnn.pad_sequence(waves, batch_first=True)
        rows.append(network(norm(fbank(inputs), lengths), lengths)[:, 0].numpy())
    return np.concatenate(rows)


def network_alone(embedder: TorchEmbedder, items: list[Item]) -> list[Callable[[], None]]:
    """The network on ready features of the files' mean length, in batches of 1, 4 and 16.

    It embeds as many of them as there are files.
    """
    samples = int(np.mean([len(audio.read(item)) for item in items]))
    features = embedder.frontend(torch.randn(16, samples) * 0.1)[0]

    @torch.no_grad()
    def run(batch: int) -> None:
        for _ in range(0, len(items), batch):
            embedder.backbone(features[:batch])

    return [partial(run, batch) for batch in (1, 4, 16)]


def cosine(a: np.ndarray, b: np.ndarray) -> str:
    """The least cosine between rows of two matrices (N, D)."""
    return f"{min((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)):.6f}"


def extraction_rows(items: list[Item], repeats: int) -> None:
    """Print the table of whole extraction."""
    torchaudio = import_torchaudio()
    from speechbrain.lobes.features import Fbank
    from speechbrain.processing.features import InputNormalization

    fbank = torchaudio.compliance.kaldi.fbank
    norm = InputNormalization(norm_type="sentence", std_norm=False).eval()
    parts = (Fbank(n_mels=80).eval(), norm)
    table("network; peer", "ours", "peer", "limit", "ours/limit", "ours/peer", "cosine")
    resnet = TorchEmbedder(WESPEAKER_FBANK(), ResNet(80)).eval()
    backbone = ECAPA(80, channels=512)
    ecapa = TorchEmbedder(SpeechBrainFbank(), backbone).eval()
    network = cast(nn.Module, backbone.network)
    of_resnet = partial(wespeaker, resnet.backbone, items, fbank)
    of_ecapa = partial(speechbrain, network, items, 16, parts)
    compared: list[tuple[str, TorchEmbedder, Callable[[], Any]]] = [
        ("ResNet34 (6.6 M); WeSpeaker, batch 1", resnet, of_resnet),
        ("ECAPA c512, SpeechBrain's; SpeechBrain, batch 16", ecapa, of_ecapa),
    ]
    for name, embedder, peer in compared:
        ours = partial(embed, embedder, items, audio.read)
        times = in_turn([ours, peer, *network_alone(embedder, items)], repeats)
        (seconds, (made, _)), (peer_seconds, theirs), *bare = times
        limit = min(taken for taken, _ in bare)
        rates = [f"{len(items) / taken:.1f}" for taken in (seconds, peer_seconds, limit)]
        ratios = f"{limit / seconds:.2f}", f"{peer_seconds / seconds:.2f}"
        row(name, *rates, *ratios, cosine(made.matrix, theirs))


def main() -> None:
    """Print the table."""
    data = ("data", ROOT.parent / "shared" / "data")
    arguments = parser_of(__doc__, data, ("files", 96), ("repeats", 3)).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recordings = an4.items(arguments.data, split="all")
    items = recordings[:: max(1, len(recordings) // arguments.files)][: arguments.files]
    extraction_rows(items, arguments.repeats)


if __name__ == "__main__":
    main()
