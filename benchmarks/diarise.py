"""Who speaks when, on conversations that are put together from recordings of one speaker each.

    python benchmarks/diarise.py --data ../shared/data --out runs/corpora [--develop]

Measures: the diarisation error rate (DER) of `likeness diarise`, with its parts, and how often the
    number of speakers is right. The conversations are simulated: 2, 3 or 4 speakers take turns in
    random order, with pauses of .1 to 1.2 s and without any overlap. Every speaker is brought to
    -26 dBFS and then made up to 6 dB louder or quieter, and white noise is added to all of it, 30
    to 20 dB below. Each speaker is in one conversation only. A turn is a third of a recording of
    LibriSpeech, or a recording of speechocean. The reference is where Silero's network finds speech
    in the clean recordings, with pauses up to .3 s closed; no collar is left out. Half of the
    speakers of each corpus, drawn with seed 0, chose what is set (--develop prints how); the other
    half are tested. The model has heard neither half: it is that of small_voice.py which was
    trained on the two other corpora. likeness:voice itself has heard all of them, and is measured
    beside it. Intervals are a bootstrap over conversations, with 1,000 resamples and seed 0.
Peers: Resemblyzer's network, which comes with its package, in the place of ours where it is
    installed: the same windows and the same clustering, with the estimated threshold. Limit: the
    same with the speech and the number of speakers known; and one speaker for all of the speech.
Needs: librispeech/ and speechocean/ in the folder of --data, and the models of small_voice.py in
    --out.
Takes: 6 CPU minutes.
Gives: a section of docs/reference/results.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import corpora
import numpy as np
import soundfile
from numpy.typing import NDArray
from performance import is_installed, parser_of, row, table
from small_voice import LEAST_SECONDS, LEVEL_DBFS, NEEDS_HZ, RATE_HZ, READ, SYSTEMS

import likeness
from eval.bootstrap import percentile_interval
from eval.diarisation import DiarisationErrors, diarisation_errors
from eval.formats.rttm import Turn
from likeness.diarisation.clusters import CHOSEN, Clustering
from likeness.diarisation.diarise import diarise_windows
from likeness.diarisation.segments import Diarisation
from likeness.diarisation.windows import Windows, windows_of
from modalities.speaker import activity, audio, silero
from modalities.speaker.activity import HOP_SECONDS
from modalities.speaker.decoding import Wave
from modalities.speaker.level import at_level
from toolkit.data.items import Item
from toolkit.models.loaded import Loaded

CORPORA = {"librispeech": "speechocean+an4", "speechocean": "an4+librispeech"}  # tested: trained
NUMBERS = (2, 3, 4)  # of speakers, in turn
PAUSES = (0.1, 1.2)  # seconds between two turns
CLOSED_SECONDS = 0.3  # pauses of the reference
THRESHOLDS = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0)
WINDOWS = (1.0, 1.5, 2.0)  # seconds, at steps of half of that
LEAST_WINDOWS = (3, 5)
RESAMPLES = 1000
PEER = "Resemblyzer"


@dataclass(frozen=True)
class Conversation:
    """A recording that was put together.

    Attributes:
        name: What it is called.
        wave: (samples,) at 16 kHz.
        turns: Who speaks when.
    """

    name: str
    wave: Wave
    turns: Sequence[Turn]

    @property
    def num_speakers(self) -> int:
        """How many speakers there are."""
        return len({turn.speaker for turn in self.turns})

    @property
    def speech(self) -> NDArray[np.int64]:
        """The speech, in frames."""
        times = np.array([turn[1:3] for turn in self.turns])
        return np.rint(times / HOP_SECONDS).astype(np.int64)


def conversations(data: Path, corpus: str, *, develops: bool) -> list[Conversation]:
    """The conversations of one half of a corpus's speakers."""
    of_speaker: dict[str, list[Item]] = {}
    for item in corpora.items_of(data, corpus):
        of_speaker.setdefault(str(item.label), []).append(item)
    rng = np.random.default_rng(0)
    order = rng.permutation(sorted(of_speaker)).tolist()
    half = len(order) // 2
    left = order[:half] if develops else order[half:]
    made: list[Conversation] = []
    while len(left) >= (number := NUMBERS[len(made) % len(NUMBERS)]):
        chosen, left = left[:number], left[number:]
        name = f"{corpus}-{'development' if develops else 'test'}-{len(made)}"
        made.append(conversation(name, [of_speaker[who] for who in chosen], rng))
    return made


def conversation(
    name: str, speakers: Sequence[Sequence[Item]], rng: np.random.Generator
) -> Conversation:
    """Put the recordings of some speakers together."""
    spoken = [(item, gain) for own in speakers for gain in [rng.uniform(-6, 6)] for item in own]
    waves, turns, place = list[Wave](), list[Turn](), 0
    for number in rng.permutation(len(spoken)).tolist():
        item, gain = spoken[number]
        wave = at_level(audio.read(item), LEVEL_DBFS) * np.float32(10 ** (gain / 20))
        for start, end in clean_speech(wave):
            begin = place / RATE_HZ
            turns.append(Turn(name, begin + start, begin + end, str(item.label)))
        pause = np.zeros(round(RATE_HZ * rng.uniform(*PAUSES)), np.float32)
        waves += [wave, pause]
        place += len(wave) + len(pause)
    wave = np.concatenate(waves)
    noise = rng.normal(0, 10 ** ((LEVEL_DBFS - rng.uniform(20, 30)) / 20), len(wave))
    return Conversation(name, (wave + noise).astype(np.float32), turns)


def clean_speech(wave: Wave) -> list[tuple[float, float]]:
    """Start and end, in seconds, of what Silero's network finds in a clean recording."""
    found = activity.closed(
        silero.speech([wave], silero_network()), round(CLOSED_SECONDS / HOP_SECONDS)
    )
    last = len(wave) / RATE_HZ
    return [(start * HOP_SECONDS, min(last, end * HOP_SECONDS)) for start, end in found.tolist()]


@cache
def silero_network() -> Any:
    """The network in the package silero-vad, which is not imported."""
    from onnxruntime import InferenceSession, SessionOptions

    spec = find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the reference needs Silero's network: pip install --no-deps silero-vad")
    options = SessionOptions()
    options.intra_op_num_threads = 1
    file = Path(spec.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    return InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def unheard(corpus: str, out: Path) -> Loaded:
    """The model of the two other corpora, which reads as likeness:voice does."""
    folders = "+".join(corpora.folder_of(system, Path()).name for system in SYSTEMS)
    folder = out / "voice" / folders / f"{CORPORA[corpus]}-to-{corpus}" / "joined"
    read = partial(READ, min_seconds=LEAST_SECONDS, needs_hz=NEEDS_HZ)
    return replace(likeness.load(folder).loaded, read=read)


class Resemblyzer:
    """Resemblyzer's network as an embedder."""

    pads_exactly, is_on_cpu, dim = False, True, 256

    def __init__(self) -> None:
        from resemblyzer import VoiceEncoder

        self.network = VoiceEncoder("cpu", verbose=False)

    def embed_batch(self, inputs: Wave, lengths: object = None) -> Wave:
        """The embeddings of waves of one length."""
        return np.stack([self.network.embed_utterance(wave) for wave in inputs])

    def used_length(self, length: int) -> int:
        """All of an input is used."""
        return length


def embedded(
    model: Loaded, talks: Sequence[Conversation], how: Clustering, *, known: bool = False
) -> list[Windows]:
    """The windows of conversations; the speech may be known."""
    made = []
    with TemporaryDirectory() as folder:
        for talk in talks:
            path = Path(folder) / f"{talk.name}.wav"
            soundfile.write(path, talk.wave, RATE_HZ, subtype="FLOAT")
            find = partial(known_speech, talk) if known else None
            made.append(windows_of(model, Item(talk.name, path), how, find=find))
    return made


def known_speech(talk: Conversation, blocks: object, rate_hz: int) -> NDArray[np.int64]:
    """The speech of a conversation, where it is known."""
    return talk.speech


def errors_of(
    talks: Sequence[Conversation], results: Sequence[Sequence[Turn]]
) -> list[DiarisationErrors]:
    """The errors of each conversation."""
    return [diarisation_errors(a.turns, b) for a, b in zip(talks, results, strict=True)]


def rate(errors: Sequence[DiarisationErrors]) -> float:
    """The error rate of all of them."""
    return sum(e.missed + e.false_alarm + e.confusion for e in errors) / sum(
        e.speech for e in errors
    )


def cells(
    talks: Sequence[Conversation], errors: Sequence[DiarisationErrors], found: Sequence[int]
) -> list[str]:
    """The error rate with its interval, its parts, and how often the number is right."""
    rng = np.random.default_rng(0)
    draws = [
        rate([errors[i] for i in rng.integers(len(errors), size=len(errors))])
        for _ in range(RESAMPLES)
    ]
    low, high = percentile_interval(np.array(draws), 0.95)
    speech = sum(e.speech for e in errors)
    parts = [
        100 * sum(part) / speech
        for part in zip(*((e.missed, e.false_alarm, e.confusion) for e in errors), strict=True)
    ]
    right = sum(talk.num_speakers == n for talk, n in zip(talks, found, strict=True))
    return [
        f"{100 * rate(errors):.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        ", ".join(f"{part:.1f}" for part in parts),
        f"{right} of {len(talks)}",
    ]


def results_of(
    model: Loaded,
    talks: Sequence[Conversation],
    windows: Sequence[Windows],
    how: Clustering,
    *,
    known: bool = False,
) -> list[Diarisation]:
    """What is found in conversations; the number of speakers may be known."""
    results = []
    for talk, part in zip(talks, windows, strict=True):
        number = talk.num_speakers if known else None
        bounded = replace(how, least_speakers=number or 1, most_speakers=number)
        results.append(diarise_windows(model, part, bounded))
    return results


def print_development(data: Path, out: Path) -> None:
    """Print what chose the windows, the threshold and the fewest windows of a speaker."""
    halves = {corpus: conversations(data, corpus, develops=True) for corpus in CORPORA}
    table("window, s", "fewest windows", "threshold", *(f"{c}: DER %" for c in CORPORA), "mean")
    for seconds in WINDOWS:
        how = Clustering(window_seconds=seconds, step_seconds=seconds / 2)
        models = {corpus: unheard(corpus, out) for corpus in CORPORA}
        windows = {c: embedded(models[c], talks, how) for c, talks in halves.items()}
        for least, threshold in product(LEAST_WINDOWS, (*THRESHOLDS, None)):
            chosen = replace(how, threshold=threshold, least_windows=least)
            rates = []
            for corpus, talks in halves.items():
                found = results_of(models[corpus], talks, windows[corpus], chosen)
                rates.append(100 * rate(errors_of(talks, [one.turns for one in found])))
            shown = "estimated" if threshold is None else f"{threshold:g}"
            row(seconds, least, shown, *(f"{x:.1f}" for x in (*rates, np.mean(rates))))


def print_test(corpus: str, systems: Mapping[str, Loaded], data: Path) -> None:
    """Print the rates of the other half of a corpus's speakers."""
    talks = conversations(data, corpus, develops=False)
    speech = sum(turn.end - turn.start for talk in talks for turn in talk.turns)
    minutes = sum(len(talk.wave) for talk in talks) / RATE_HZ / 60
    print(
        f"\n{corpus}: {len(talks)} conversations of {minutes:.1f} minutes, of which "
        f"{speech / 60:.1f} are speech\n"
    )
    table("system", "speech", "speakers", "DER %", "missed, false alarm, confusion", "number right")
    alone = [[turn._replace(speaker="one") for turn in talk.turns] for talk in talks]
    found = [1] * len(talks)
    row("one speaker for all", "known", "", *cells(talks, errors_of(talks, alone), found))
    (threshold,) = CHOSEN.values()
    for name, model in systems.items():
        own = None if name == PEER else threshold
        for known in (False, True):
            windows = embedded(model, talks, Clustering(), known=known)
            ways = {} if own is None else {f"until {own:g}": Clustering(own)}
            if model.digest[:16] not in CHOSEN and not (known and own):
                ways["estimated"] = Clustering()
            for said, how in (ways | {"known": None}).items():
                results = results_of(model, talks, windows, how or Clustering(), known=how is None)
                errors = errors_of(talks, [one.turns for one in results])
                speakers = [len(one.speakers) for one in results]
                row(name, "known" if known else "by energy", said, *cells(talks, errors, speakers))


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of small_voice.py")
    parser.add_argument("--develop", action="store_true", help="print what chose the settings")
    arguments = parser.parse_args()
    if arguments.develop:
        print_development(arguments.data, arguments.out)
        return
    for corpus in CORPORA:
        systems = {
            "unheard": unheard(corpus, arguments.out),
            "likeness:voice, which has heard them": likeness.load("likeness:voice").loaded,
        }
        if is_installed("resemblyzer", "resemblyzer"):
            systems[PEER] = Loaded(Resemblyzer(), audio.read, "speaker", "cosine", "resemblyzer", 0)
        print_test(corpus, systems, arguments.data)


if __name__ == "__main__":
    main()
