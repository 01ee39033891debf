"""How models bear what happens to recordings and pictures: `likeness bench`.

Each trial is scored as it is, and once for each condition with its test side damaged. What was
damaged is a file again, which the model reads like any other. So a model refuses what it would
refuse from a user, and the numbers are those of `embed`, `score` and `evaluate`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import cv2
import numpy as np
import soundfile

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import subjects_of
from likeness.eval.formats.trials import read_trials
from likeness.eval.formats.values import (
    File,
    Names,
    files_in,
    groupings_of,
    names_of,
    names_of_files,
)
from likeness.eval.intervals.bootstrap import Bounds, drawn_from, draws_of
from likeness.eval.intervals.comparison import Difference, Outcome, holm, summarise
from likeness.eval.intervals.paired import Paired
from likeness.eval.items.items import Item
from likeness.eval.metrics.groups import Part, Rate, own_rates, rates_at, sides_of
from likeness.eval.option import Option
from likeness.eval.protocols.side_by_side import check_labels
from likeness.eval.protocols.verification import Conventions, VerificationSettings
from likeness.eval.reports.conditions import METRICS, Bench
from likeness.eval.results import Result, complement, with_bounds
from likeness.eval.scoring.score import score
from likeness.eval.scoring.thresholds import Far
from likeness.eval.temporary import temporary_folder
from likeness.eval.types import Bools, Floats, Ints, Scores, Trials
from likeness.modalities.speaker.audio import read, resample
from likeness.modalities.speaker.augment import add_noise
from likeness.modalities.speaker.codec import round_trip
from likeness.modalities.speaker.decoding import Wave
from likeness.modalities.speaker.noise import reverberate
from likeness.models.inputs import items_of
from likeness.models.model import Model, load
from likeness.toolkit.data.images import decode_bytes, encode, file_bytes
from likeness.toolkit.models.embed import embed_where_readable

# Of each condition the number N where none is named, the largest one, and what is done. 0: no N.
_RECORDINGS = {
    "mp3": (0.0, 0.0, "mp3 at about 64 kbit/s"),
    "ogg": (0.0, 0.0, "Ogg Vorbis at about 45 kbit/s"),
    "opus": (0.0, 0.0, "Opus at about 16 kbit/s"),
    "8khz": (0.0, 0.0, "a rate of 8 kHz"),
    "noise": (20.0, 100.0, "white noise, N dB below the recording"),
    "reverb": (0.5, 10.0, "a synthetic room, whose echo falls by 60 dB in N s"),
    "quiet": (20.0, 100.0, "N dB less level, at 16 bits"),
}
_PICTURES = {
    "jpeg": (30.0, 100.0, "JPEG of quality N"),
    "blur": (2.0, 100.0, "a Gaussian blur of N pixels"),
    "small": (32.0, 10_000.0, "a shorter edge of N pixels, enlarged again"),
    "dark": (30.0, 100.0, "N % of the light"),
    "mirror": (0.0, 0.0, "left and right changed"),
}
_RATE_HZ = 16_000
CLEAN, PROTOCOL = "clean", "verification 1:1"
_MARK = "\0"  # between the name of a condition and an id


class Condition(NamedTuple):
    """What is done to an item.

    Attributes:
        name: As it was written, such as "noise20".
        kind: Such as "noise".
        value: The number, such as 20.0; 0 where the kind has none.
        text: What is done, in words.
    """

    name: str
    kind: str
    value: float
    text: str


def room(seconds: float, rate_hz: int, rng: np.random.Generator) -> Any:
    """Draw the impulse response of a room: noise that dies away behind a direct sound.

    Both have the same energy, as at a distance of one or two metres. Source: J.-D. Polack, La
    transmission de l'énergie sonore dans les salles, 1988.

    Args:
        seconds: The time in which the echo falls by 60 dB.
        rate_hz: The rate in Hz.
        rng: The generator of the noise.

    Returns:
        (samples,) float32. The first one is the direct sound, 1.

    Example:
        >>> response = room(0.5, 16_000, np.random.default_rng(0))
        >>> response.shape, float(response[0]), round(float(np.sum(response**2)), 3)
        ((8000,), 1.0, 2.0)
    """
    samples = np.arange(int(seconds * rate_hz))
    tail = rng.standard_normal(samples.size) * 10 ** (-3 * samples / (seconds * rate_hz))
    tail[0] = 0.0
    response = (tail / np.sqrt(np.sum(tail**2))).astype(np.float32)
    response[0] = 1.0
    return response


def parse(names: Sequence[str], modality: str) -> list[Condition]:
    """Read the names of conditions.

    Args:
        names: Such as "mp3" and "noise20".
        modality: "speaker", "face" or "image".

    Raises:
        LikenessError: A name is not known, or its number is out of range.

    Example:
        >>> [(one.name, one.value) for one in parse(["mp3", "noise15", "reverb"], "speaker")]
        [('mp3', 0.0), ('noise15', 15.0), ('reverb', 0.5)]
    """
    known = _RECORDINGS if modality == "speaker" else _PICTURES
    found = []
    for name in dict.fromkeys(names):
        split = re.fullmatch(r"(.*?)(\d+(?:\.\d+)?)?", name, re.DOTALL)
        kind, number = (name, None) if name in known or not split else split.groups()
        usual, most, text = known.get(kind, (0.0, -1.0, ""))
        value = float(number or usual)
        if not (0 < value <= most or value == most):
            listed = [f"{each}N (up to {of[1]:g})" if of[1] else each for each, of in known.items()]
            raise LikenessError(
                f"condition {name!r} is not known for {modality} models; there is "
                f"{', '.join(listed)}"
            )
        found.append(Condition(name, kind, value, re.sub(r"\bN\b", f"{value:g}", text)))
    return found


def damaged(item: Item, condition: Condition, modality: str, folder: Path) -> Path:
    """Write an item as it is in a condition. The same id gets the same noise and the same room.

    A recording is brought to 16 kHz first and becomes a FLAC file of 16 bits. A picture becomes a
    PNG file.

    Args:
        item: The item.
        condition: What is done to it.
        modality: "speaker", "face" or "image".
        folder: Where the file is written.

    Returns:
        The file.

    Raises:
        LikenessError: The item cannot be read.
    """
    if modality != "speaker":
        pixels = decode_bytes(file_bytes(item), item.name)
        path = folder / "damaged.png"
        path.write_bytes(encode(_picture(pixels, *condition[1:3])))
        return path
    wave = _sound(read(item, rate_hz=_RATE_HZ), condition, crc32(item.id.encode()))
    path = folder / "damaged.flac"
    full = max(1.0, float(np.abs(wave).max()))  # nothing is clipped
    soundfile.write(path, wave / full, _RATE_HZ, subtype="PCM_16")
    return path


def _sound(wave: Wave, condition: Condition, seed: int) -> Wave:
    """A wave in a condition."""
    kind, value, rng = condition.kind, condition.value, np.random.default_rng(seed)
    match kind:  # the compressions give these rates at 16 kHz
        case "mp3":
            return round_trip(wave, "mp3", compression=0.0)
        case "ogg":
            return round_trip(wave, "vorbis", compression=0.6)
        case "opus":
            return round_trip(wave, "opus", compression=0.96)
        case "8khz":
            return resample(resample(wave, _RATE_HZ, 8_000), 8_000, _RATE_HZ)
        case "noise":
            return add_noise(wave, rng, snr_db=(value, value), color=(0.0, 0.0))
        case "reverb":
            return reverberate(wave, room(value, _RATE_HZ, rng))
    return wave * np.float32(10 ** (-value / 20))


def _picture(pixels: Any, kind: str, value: float) -> Any:
    """Pixels in a condition."""
    match kind:
        case "jpeg":
            return decode_bytes(encode(pixels, ".jpg", quality=round(value)), kind)
        case "blur":
            return cv2.GaussianBlur(pixels, (0, 0), value)
        case "small":
            share = min(1.0, max(1.0, value) / min(pixels.shape[:2]))
            shrunk = cv2.resize(pixels, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
            return cv2.resize(shrunk, pixels.shape[1::-1], interpolation=cv2.INTER_CUBIC)
        case "dark":
            return np.rint(pixels * (value / 100)).astype(np.uint8)
    return np.ascontiguousarray(pixels[:, ::-1])


class _Scored(NamedTuple):
    """What a model made of the trials in a condition.

    Attributes:
        values: (P,) the scores; NaN where a side was refused.
        lost: (P, 2) which sides were refused.
        reason: Why the first of them was; "" where none was.
    """

    values: Floats
    lost: Bools
    reason: str


def _score_all(
    model: Model, trials: Trials, items: Sequence[Item], conditions: Sequence[Condition], both: bool
) -> dict[str, _Scored]:
    """Condition -> the scores of a model; of the items as they are first."""
    loaded, ids = model.loaded, {*trials.enrol_ids} if both else set()
    tested = [item for item in items if item.id in ids.union(trials.probe_ids)]
    every, by_name = [*items], {condition.name: condition for condition in conditions}
    for name in by_name:
        every += [item._replace(id=f"{name}{_MARK}{item.id}") for item in tested]

    def read(item: Item) -> Any:
        """What the model reads of an item, whose id begins with its condition, if it has one."""
        name, mark, id = item.id.rpartition(_MARK)
        if not mark:
            return loaded.read(item)
        with temporary_folder() as folder:
            path = damaged(item._replace(id=id), by_name[name], model.modality, folder)
            value = loaded.read(item._replace(path=path, span=None, ending="", stretch=None))
            # Several inputs are read one by one, which has to be done while the file is there.
            return list(value) if isinstance(value, Iterator) else value

    found, bad = embed_where_readable(loaded.embedder, every, read)
    reasons = {one.id: one.reason for one in bad}
    made = {}
    for name, mark in {CLEAN: "", **{name: f"{name}{_MARK}" for name in by_name}}.items():
        enrol = tuple(f"{mark * both}{id}" for id in trials.enrol_ids)
        probe = tuple(f"{mark}{id}" for id in trials.probe_ids)
        listed = replace(trials, enrol_ids=enrol, probe_ids=probe)
        of_sides = (enrol, trials.enrol), (probe, trials.probe)
        lost = np.stack([np.isin(side, [*reasons])[rows] for side, rows in of_sides], axis=1)
        kept, values = np.flatnonzero(~lost.any(axis=1)), np.full(len(trials), np.nan)
        if found is not None and kept.size:
            of_model = Embeddings(found.ids, found.matrix, loaded.meta)
            values[kept] = score(listed.rows(kept), of_model).values
        reason = next((reasons[id] for id in (*enrol, *probe) if id in reasons), "")
        # Reasons name the file first, which is a temporary one.
        made[name] = _Scored(values, lost, reason.partition(": ")[2] or reason)
    return made


def bench(
    models: Annotated[Sequence[str | Path], Option("--model", metavar="TEXT")],
    trials: Annotated[File | Trials, Option(path="file")],
    conditions: Annotated[Sequence[str], Option(separator=",")] = (),
    *,
    root: str | Path | None = None,
    subjects: Annotated[Names | None, Option(path="file")] = None,
    groups: Annotated[Names | Sequence[Names] | None, Option(metavar="FILE[:COLUMN]")] = None,
    far: Annotated[Far, Option(metavar="RATE")] = 0.01,
    both_sides: bool = False,
    num_resamples: Annotated[int, Option("--resamples", least=0)] = 1000,
) -> Bench:
    """Measure models on the same trials under conditions, such as codecs, noise and rooms.

    Args:
        models: a model, as `likeness.load` takes it; all are of one modality, and the others are
            compared with the first.
        trials: the trial list with labels, or Trials.
        conditions: what is done to the test side: mp3, ogg, opus, 8khz, noise20 (dB below),
            reverb0.5 (s), quiet20 (dB less); of pictures jpeg30 (quality), blur2 and small32
            (pixels), dark30 (%), mirror. The items as they are come first in any case.
        root: the folder that the ids of the trials, which are paths, start from.
        subjects: as in `likeness.eval.protocols.evaluation.evaluate`.
        groups: as in `likeness.eval.protocols.evaluation.evaluate`. The trials are split by the
            groups of both sides as well.
        far: the false-accept rate of the stored threshold at which FAR and FRR are measured.
        both_sides: whether the enrolment side is damaged as well as the test side.
        num_resamples: draws of the bootstrap over subjects; 0 leaves the intervals out.

    Returns:
        The results; print them to see the table.

    Raises:
        LikenessError: a condition is not known, the models are of several modalities, or the
            subjects of the trials are not known. As `likeness.load` and `likeness.evaluate`.

    Example:
        >>> import likeness
        >>> found = likeness.bench(["runs/voices"], "trials.txt", ["quiet20"], root="voices")
        >>> [(each.conventions["condition"], each.metric) for each in found.results]
        [('clean', 'refused'), ('clean', 'eer'), ('quiet20', 'refused'), ('quiet20', 'eer')]
    """
    names = names_of_files([Path(model) for model in models], "model")
    loaded = dict(zip(names, map(load, models), strict=True))
    modality, *others = {model.modality for model in loaded.values()}
    if others:
        raise LikenessError(f"a {modality} and a {others[0]} model; give models of one modality")
    parsed = parse(conditions, modality)
    listed = trials if isinstance(trials, Trials) else read_trials(trials)
    check_labels("the trials", listed.target)
    subject_of = names_of(subjects)
    numbers, source = subjects_of(listed, subject_of)
    if numbers is None:
        raise LikenessError(f"subjects: {source}; give an `id subject` list, for the intervals")
    pairs = np.stack([numbers[0][listed.enrol], numbers[1][listed.probe]], axis=1)
    parts = _parts(listed, groupings_of(groups), subject_of)
    side = "both sides" if both_sides else "the test side"
    notes = [f"{one.name}: {one.text}, on {side} of each trial." for one in parsed]
    limits: dict[str, float | None] = {}
    scored: dict[str, dict[str, _Scored]] = {}
    ids = dict.fromkeys([*listed.enrol_ids, *listed.probe_ids])
    with items_of({id: id for id in ids}, modality=modality, root=root) as items:
        for name, model in loaded.items():
            scored[name] = _score_all(model, listed, items, parsed, both_sides)
            limits[name], text = _threshold(model, far)
            notes.append(f"{name}: {text}.")
            refused: dict[str, list[str]] = {}
            for condition, of in scored[name].items():
                refused.setdefault(of.reason, []).append(condition)
            notes += [f"{name}, {', '.join(of)}: {why}." for why, of in refused.items() if why]
    settings = VerificationSettings((), fars=(), num_resamples=num_resamples)
    cells = _Cells(listed, pairs, source, scored, limits, settings)
    return Bench(*cells.table(parts), notes, files_in(trials, subjects, groups))


def _threshold(model: Model, far: Far) -> tuple[float | None, str]:
    """The stored threshold of a model, and a text on it or on why there is none."""
    try:
        *_, threshold, source = model.comparer(far=far)
    except LikenessError as error:
        return None, f"no FAR and FRR, because {error}"
    return threshold, f"FAR and FRR at the threshold {threshold:.4g} of {source}"


def _parts(
    trials: Trials, groupings: Mapping[str, Mapping[str, str]], named: Mapping[str, str] | None
) -> dict[str, Bools]:
    """What groups of both sides are called -> (P,) their trials; "" for all."""
    parts = {"": np.ones(len(trials), dtype=np.bool_)}
    named = named or {id: id.partition("/")[0] for id in trials.enrol_ids + trials.probe_ids}
    for by, group_of in groupings.items():
        sides, groups = sides_of(trials, group_of, named)
        for pair in np.unique(sides, axis=0).tolist():
            name = " / ".join(groups[side] for side in pair)
            parts[f", {by} {name}".replace("  ", " ")] = (sides == pair).all(axis=1)
    return parts


@dataclass(frozen=True, eq=False)
class _Cells:
    """What the cells of the table are measured from.

    Attributes:
        trials: P labelled trials.
        pairs: (P, 2) the subjects of both sides.
        source: Where the subjects come from.
        scored: Model -> condition -> its scores.
        limits: Model -> its stored threshold, or None.
        settings: The draws of the intervals.
    """

    trials: Trials
    pairs: Ints
    source: str
    scored: Mapping[str, Mapping[str, _Scored]]
    limits: Mapping[str, float | None]
    settings: VerificationSettings

    def table(self, parts: Mapping[str, Bools]) -> tuple[list[Result], Paired]:
        """The results of all cells, and the differences to the first model."""
        results: list[Result] = []
        differences: dict[tuple[str, str], Difference] = {}
        reference, *_ = self.scored
        for condition, (part, rows) in product(self.scored[reference], parts.items()):
            own: Conventions = {"condition": condition + part}
            scores = [of[condition].values for of in self.scored.values()]
            lost = rows & np.isnan(scores).any(axis=0)
            outcomes = {}
            for name in self.scored:
                cell, outcome = self.rates(name, condition, rows)
                results += [replace(of, conventions=own | dict(of.conventions)) for of in cell]
                if lost.any():
                    outcome = self.rates(name, condition, rows & ~lost)[1]
                outcomes[name] = {0: outcome}
            for found in summarise(outcomes, METRICS, reference=reference)[0]:
                if found.difference is not None:
                    key = f"{found.variant}, {condition}{part}", found.metric
                    differences[key] = found.difference
        tested = {key: of.p for key, of in differences.items() if of.p is not None}
        for key, p in zip(tested, holm(list(tested.values())), strict=True):
            differences[key] = replace(differences[key], p_holm=p)
        return results, Paired(reference, differences, (), "subjects")

    def rates(self, name: str, condition: str, rows: Bools) -> tuple[list[Result], Outcome]:
        """What a model makes of some trials: "refused" first, then the rates of the others."""
        of, target, settings = self.scored[name][condition], self.trials.target, self.settings
        assert target is not None
        kept, sides = rows & ~np.isnan(of.values), (self.trials.enrol, self.trials.probe)
        part = Part(Scores(of.values[kept], target[kept]), self.pairs[kept])
        num = sum(np.unique(side[rows]).size for side in sides)
        bad = sum(np.unique(s[rows & lost]).size for s, lost in zip(sides, of.lost.T, strict=True))
        counts: dict[str, int | None] = {
            "targets": part.scores.targets.size,
            "nontargets": part.scores.nontargets.size,
            "subjects": np.unique(part.subjects).size,
            "items": num,
            "refused": bad,
        }
        about = {"subjects_from": self.source, **draws_of(settings)}
        own, draws = own_rates(part, settings)
        lacking = np.full(settings.num_resamples, np.nan)
        draws = {"eer": lacking} | draws
        rates = {"refused": Rate(bad / max(1, num)), "eer": own["eer"]}
        if (limit := self.limits[name]) is not None:
            found, drawn = rates_at(part, {"": limit}, settings)
            rates |= {"far": found["global_far()"], "frr": complement(found["global_tar()"])}
            draws["far"] = drawn.get("global_far()", lacking)
            draws["frr"] = 1 - drawn.get("global_tar()", lacking)
        results = []
        for metric, rate in rates.items():
            if rate.value is not None:
                at = limit if metric in ("far", "frr") else None
                made = Result(name, metric, rate.value, None, at, counts, about, PROTOCOL)
                results.append(with_bounds(made, Bounds(rate.interval, rate.note)))
        measured = {each.metric: each.value for each in results}
        return results, Outcome(measured, draws, "", drawn_from(part.scores.target, part.subjects))
