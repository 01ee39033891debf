"""`likeness diarise`: who speaks when in a recording. likeness/diarisation/ does the work."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eval.errors import LikenessError
from eval.types import name_first
from likeness.commands.options import (
    EXISTING,
    Frontend,
    OwnThreshold,
    StoredThreshold,
    ThresholdFile,
    Trust,
    refuse_idle,
    refuse_input_as_output,
    rule_of,
)
from likeness.included import introduction, model_for
from likeness.missing import refuse_missing_files, refuse_missing_model
from toolkit.console import one_line, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eval.diarisation import DiarisationErrors
    from likeness.diarisation.clusters import Clustering

app = typer.Typer()


@app.command(
    epilog="Examples: likeness diarise meeting.wav --out meeting.rttm; likeness diarise call.flac "
    "--speakers 2 --out call.rttm; likeness diarise meeting.wav --model runs/an4 --gallery people "
    "--far 0.01 --out meeting.rttm; likeness diarise meeting.wav --reference truth.rttm --collar "
    "0.25"
)
def diarise(
    context: typer.Context,
    recordings: Annotated[
        list[Path], typer.Argument(metavar="RECORDING...", help="Recordings of any length.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model, as for `likeness verify` (default: likeness:voice, the small model "
            "that comes with Likeness)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The RTTM file to write, of all recordings.")
    ] = None,
    speakers: Annotated[
        int | None, typer.Option(min=1, help="How many speakers there are in each recording.")
    ] = None,
    min_speakers: Annotated[
        int | None, typer.Option(min=1, help="How many there are at least.")
    ] = None,
    max_speakers: Annotated[
        int | None, typer.Option(min=1, help="How many there are at most.")
    ] = None,
    cluster_threshold: Annotated[
        float | None,
        typer.Option(
            help="Two clusters of windows are joined if the mean score of their windows is at "
            "least this (default: what was measured for likeness:voice; for any other model it is "
            "estimated from the scores in each recording)."
        ),
    ] = None,
    gallery: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="A gallery of this model, whose names the speakers get where they reach the "
            "threshold of --far or --threshold.",
        ),
    ] = None,
    far: StoredThreshold = None,
    threshold: OwnThreshold = None,
    thresholds: ThresholdFile = None,
    vad: Annotated[
        Path | None,
        typer.Option(
            help="silero_vad.onnx of the package silero-vad, which then finds the speech (default: "
            "by its energy).",
            **EXISTING,
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="An RTTM file of who speaks when in truth: print the error rate.", **EXISTING
        ),
    ] = None,
    collar: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="With --reference: seconds on each side of the reference's boundaries that are "
            "not scored.",
        ),
    ] = 0.0,
    skip_overlap: Annotated[
        bool,
        typer.Option(
            "--skip-overlap",
            help="With --reference: leave out the times in which several people speak.",
        ),
    ] = False,
    frontend: Frontend = "wespeaker",
    trust: Trust = None,
) -> None:
    """Say who speaks when in recordings, and write it as RTTM.

    Speech is found by its energy, embedded in windows of 1.5 s, and the windows are clustered. Two
    people who speak at once are taken for one of them. Recordings that cannot be read are named and
    left out.
    """
    refuse_input_as_output(context, "out")
    refuse_idle(context, ("collar", "skip_overlap"), "--reference", reference)
    if threshold is not None and gallery is None:
        raise LikenessError(
            "--threshold is for the names of a gallery, and none is given; --cluster-threshold "
            "tells the speakers of a recording apart"
        )
    refuse_idle(context, ("far", "thresholds"), "--gallery", gallery)
    _refuse_wrong_files(recordings, out, context)
    rule = rule_of(threshold, far, thresholds)
    if gallery is not None and not rule.decides:
        raise LikenessError(
            "--gallery needs the score from which on a name is given; name a stored threshold by "
            "--far, or a number by --threshold"
        )
    if model is not None:
        refuse_missing_model(model)
    chosen = model_for(model, recordings)
    how = _clustering(cluster_threshold, speakers, min_speakers, max_speakers)

    # These are slow to import, so that what is missing has to be reported before.
    from eval.formats.rttm import read_turns, write_turns
    from likeness import galleries
    from likeness.diarisation.diarise import Names, segmented
    from likeness.diarisation.segments import compared
    from likeness.diarisation.windows import by_network
    from likeness.verification import load_to_compare
    from modalities.speaker.decoding import BadAudio
    from toolkit.data.items import Item

    if reference is not None:
        read_turns(reference)
    if gallery is not None:
        galleries.refuse_absent(gallery)
    comparer = load_to_compare(
        chosen,
        detector=None,
        frontend=frontend,
        calibration=None,
        rule=rule,
        warn=lambda _: None,  # a calibration beside the model is not used here
        trust=trust or (),
    )
    find = None if vad is None else by_network(vad)
    results, bad = [], list[str]()
    with ExitStack() as stack:
        names = None
        if gallery is not None:
            store = stack.enter_context(galleries.opened(gallery, comparer.model.meta))
            names = Names(store, comparer.threshold)
        for path in recordings:
            try:
                item = Item(str(path), path)
                results.append(segmented(comparer.model, item, how, names, find=find))
            except BadAudio as error:
                bad.append(str(error))
    if not results:
        raise LikenessError(f"none of {len(bad)} recordings can be read; the first: {bad[0]}")
    errors = None
    if reference is not None:
        errors = compared(results, reference, collar=collar, skip_overlap=skip_overlap)
    if out is not None:
        write_turns(out, [turn for found in results for turn in found.turns])
    if model is None:
        say(introduction(chosen), error=True)
    for sentence in bad:
        say(one_line(f"skipped {sentence}"), error=True)
    say("\n\n".join(found.text() for found in results))
    if errors is not None:
        say(f"\n{_text(errors, collar, skip_overlap)}")
    if out is not None:
        say(f"\n{sum(map(len, results)):,} segments in {out}")


def _refuse_wrong_files(
    recordings: Sequence[Path], out: Path | None, context: typer.Context
) -> None:
    """Refuse recordings that are missing or have one name, and an output that cannot be."""
    refuse_missing_files(list(recordings))
    folders = [str(path) for path in recordings if path.is_dir()]
    if folders:
        raise LikenessError(
            f"{name_first(folders)} is a folder; name recordings, as in talks/*.wav"
        )
    from eval.formats.rttm import as_field

    names = [as_field(path.stem) for path in recordings]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise LikenessError(
            f"{len(twice)} names are of several recordings ({name_first(twice)}), and RTTM names "
            "them without folder and suffix; take them one by one"
        )
    if out is not None:
        from likeness.row_files import check_written

        check_written(out, (".rttm",), "segments")


def _clustering(
    threshold: float | None, speakers: int | None, least: int | None, most: int | None
) -> Clustering:
    from likeness.diarisation.clusters import Clustering

    if speakers is not None:
        if least is not None or most is not None or threshold is not None:
            raise LikenessError(
                "--speakers says how many there are; leave --min-speakers, --max-speakers and "
                "--cluster-threshold out, or leave --speakers out"
            )
        least = most = speakers
    return Clustering(threshold, least or 1, most)


def _text(errors: DiarisationErrors, collar: float, skip_overlap: bool) -> str:
    """The error rate with its parts, and its conventions."""
    if not errors.speech:
        return "the reference has no speech that is scored"
    parts = [
        f"{name} {100 * value / errors.speech:.2f} % ({value:.2f} s)"
        for name, value in (
            ("missed", errors.missed),
            ("false alarm", errors.false_alarm),
            ("confusion", errors.confusion),
        )
    ]
    overlap = "overlapping speech left out" if skip_overlap else "overlapping speech scored"
    return (
        f"diarisation error rate {100 * errors.rate:.2f} % of {errors.speech:.2f} s of speech: "
        f"{', '.join(parts)}\ncollar {collar:g} s on each side, {overlap}"
    )
