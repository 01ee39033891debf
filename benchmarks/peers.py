"""Trains the peers of people.py, corpora.py and gpu_train.py.

Measures: nothing itself.
Peers: LDA on filterbank statistics. SpeechBrain 1.1 with the settings of its VoxCeleb recipe,
    recipes/VoxCeleb/SpeakerRec/hparams/train_ecapa_tdnn.yaml: Fbank 80, sentence mean normalisation
    (without it it is better here, since one session per speaker makes the channel a cue), additive
    angular margin .2 scale 30, Adam 1e-3 with weight decay 2e-6 and a triangular cyclic rate,
    frequency and chunk drop and noise. Fitted to the data's size: 256 channels instead of 1024, and
    one augmentation per batch.
    Of faces, pixels as they are, and by LDA of 60 principal components.
Takes: LDA a minute, SpeechBrain 5.5 minutes of one core a fold of AN4.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from likeness import Embeddings, Item
from likeness.data import audio
from likeness.eval.items.items import label_numbers
from likeness.frontends import KaldiFbank, statistics
from likeness.modalities.face import images
from likeness.toolkit.backbones.ecapa import import_torchaudio

Listed = Sequence[Item]
CROP_SECONDS, SEED, STEPS = 2.0, 0, 500


def lda(training: Listed, tested: Listed) -> Embeddings:
    """LDA's embeddings of the tested items.

    The input is the mean and standard deviation of 80 log filterbank energies, centred on the
    training mean; LDA has the solver eigen and shrinkage .1.
    """
    fbank = KaldiFbank(num_mels=80, cmn=False)

    def row(item: Item) -> np.ndarray:
        frames = fbank(torch.from_numpy(audio.read(item))[None])[0]
        return statistics(frames.transpose(1, 2))[0].numpy()

    train, test = (np.stack([row(item) for item in items]) for items in (training, tested))
    rows = discriminant(train - train.mean(0), training).transform(test - train.mean(0))
    return Embeddings(tuple(item.id for item in tested), rows.astype(np.float32))


def discriminant(rows: np.ndarray, items: Sequence[Item]) -> LinearDiscriminantAnalysis:
    """LDA that is fitted to the rows of items."""
    labels = [str(item.label) for item in items]
    return LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1).fit(rows, labels)


class Network:
    """SpeechBrain's front-end, ECAPA-TDNN, classifier and criterion, as its recipe has them."""

    def __init__(self, num_classes: int, *, cmn: bool):
        from speechbrain.lobes.features import Fbank
        from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
        from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper
        from speechbrain.processing.features import InputNormalization

        self.features = Fbank(n_mels=80)
        self.normalise = InputNormalization(norm_type="sentence", std_norm=False) if cmn else None
        layers = {"channels": [256] * 4 + [768], "kernel_sizes": [5, 3, 3, 3, 1]}
        layers["dilations"] = [1, 2, 3, 4, 1]
        self.network = ECAPA_TDNN(80, lin_neurons=192, attention_channels=128, **layers)
        self.classifier = Classifier(192, out_neurons=num_classes)
        self.criterion = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30))

    def encode(self, waves: torch.Tensor) -> torch.Tensor:
        """Embeddings (B, 1, 192) of waves (B, samples)."""
        features = self.features(waves)
        if self.normalise is not None:
            features = self.normalise(features, torch.ones(len(waves)))
        return self.network(features)

    def loss(self, waves: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch; the network runs in bfloat16."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            embedded = self.encode(waves)
        return self.criterion(self.classifier(embedded.float()), labels[:, None])

    def parameters(self) -> list[torch.nn.Parameter]:
        """The weights that are trained."""
        return [*self.network.parameters(), *self.classifier.parameters()]


def train(network: Network, items: Sequence[Item], labels: np.ndarray) -> None:
    """Train for STEPS steps of 32 crops, with one augmentation per batch."""
    from speechbrain.augment.time_domain import AddNoise, DropChunk, DropFreq

    rng = np.random.default_rng(SEED)
    waves = [audio.read(item) for item in items]
    samples = round(16_000 * CROP_SECONDS)
    whole = torch.ones(32)  # the lengths of the crops, as shares
    augmenters: list[Callable[[torch.Tensor], torch.Tensor]] = [
        partial(AddNoise(snr_low=0, snr_high=15), lengths=whole),
        DropFreq(drop_freq_count_low=1, drop_freq_count_high=3),
        partial(DropChunk(drop_length_low=1000, drop_length_high=2000), lengths=whole),
        lambda waves: waves,
    ]
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=2e-6)
    cycle = {"base_lr": 1e-8, "max_lr": 1e-3, "step_size_up": STEPS // 2}
    schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, **cycle, cycle_momentum=False)
    network.network.train()
    for _ in range(STEPS):
        chosen = rng.choice(len(items), 32, replace=False)
        crops = torch.from_numpy(np.stack([audio.crop(waves[i], samples, rng) for i in chosen]))
        batch = augmenters[rng.integers(len(augmenters))](crops)
        loss = network.loss(batch, torch.from_numpy(labels[chosen]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.network.eval()


def speechbrain(training: Listed, tested: Listed, *, cmn: bool = False) -> Embeddings:
    """The embeddings of the tested items by SpeechBrain's own classes throughout."""
    import_torchaudio()
    torch.manual_seed(SEED)
    names, labels = label_numbers(training)
    network = Network(len(names), cmn=cmn)
    train(network, training, labels)
    with torch.no_grad():
        waves = (torch.from_numpy(audio.read(item)) for item in tested)
        rows = [network.encode(wave[None])[0, 0].numpy() for wave in waves]
    return Embeddings(tuple(item.id for item in tested), np.stack(rows))


def of_pixels(kind: str, training: Listed, tested: Listed) -> Embeddings:
    """Embeddings of faces by their pixels, of 48 x 48."""

    def row(item: Item) -> np.ndarray:
        return images.read(item, size=(48, 48), fit="resize")[0].ravel().astype(np.float64)

    x, rows = (np.stack([row(item) for item in items]) for items in (training, tested))
    if kind == "PCA and LDA":
        components = PCA(60, random_state=0).fit(x)
        fitted = discriminant(components.transform(x), training)
        rows = fitted.transform(components.transform(rows))
    return Embeddings(tuple(item.id for item in tested), rows.astype(np.float32))


FACE_PEERS = {kind: partial(of_pixels, kind) for kind in ("pixels", "PCA and LDA")}
PEERS = {"lda": lda, "speechbrain": speechbrain, "speechbrain_cmn": partial(speechbrain, cmn=True)}
