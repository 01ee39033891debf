"""What is said of a recording: segments with their speakers, and how far they are right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.diarisation import DiarisationErrors, diarisation_errors
from eval.errors import LikenessError
from eval.formats.rttm import Turn, read_turns, write_turns
from eval.results import aligned
from eval.types import name_first
from likeness.frames import data_frame

if TYPE_CHECKING:
    from likeness.files import File


@dataclass(frozen=True)
class Segment:
    """A stretch of a recording in which one speaker speaks.

    Attributes:
        start: In seconds.
        end: In seconds.
        speaker: The name in the gallery; else "speaker-1" and so on, in the order in which they
            begin to speak; beside a gallery "unknown-1" and so on.
        score: The mean score of the segment's windows with the mean of the speaker's other windows;
            None where the speaker has no other.
    """

    start: float
    end: float
    speaker: str
    score: float | None


@dataclass(frozen=True)
class Diarisation:
    """Who speaks when in a recording.

    Attributes:
        file: What the recording is called in RTTM: its name without folder and suffix.
        seconds: Its length.
        segments: In order; no two of them overlap.
        how: How the speakers were told apart, as a sentence.
        matches: The best score in the gallery of each speaker; empty without a gallery.
    """

    file: str
    seconds: float
    segments: tuple[Segment, ...]
    how: str = ""
    matches: tuple[tuple[str, float], ...] = ()

    def __len__(self) -> int:
        """How many segments there are."""
        return len(self.segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers in the order in which they begin to speak."""
        return tuple(dict.fromkeys(segment.speaker for segment in self.segments))

    @property
    def turns(self) -> list[Turn]:
        """The segments as turns of an RTTM file."""
        return [
            Turn(self.file, segment.start, segment.end, segment.speaker)
            for segment in self.segments
        ]

    def errors(
        self, reference: File, *, collar: float = 0.0, skip_overlap: bool = False
    ) -> DiarisationErrors:
        """Compare with a reference, as `eval.diarisation.diarisation_errors`.

        Args:
            reference: An RTTM file. Its turns of other recordings are left out.
            collar: Seconds on each side of the reference's boundaries that are not scored.
            skip_overlap: Whether times with several speakers are left out.

        Raises:
            LikenessError: The file is malformed, or has no turns of this recording.
        """
        return compared([self], reference, collar=collar, skip_overlap=skip_overlap)

    def to_frame(self) -> Any:
        """Give a pandas DataFrame with the columns start, end, speaker and score.

        Raises:
            LikenessError: pandas is not installed.
        """
        names = ("start", "end", "speaker", "score")
        return data_frame({name: [getattr(segment, name) for segment in self] for name in names})

    def save(self, path: File) -> None:
        """Write an RTTM file, whole or not at all."""
        write_turns(Path(path), self.turns)

    def text(self) -> str:
        """A line for each speaker: when they begin, for how long they speak, in how many turns."""
        if not self.segments:
            return f"{self.file}: no speech in {self.seconds:.1f} s"
        best = dict(self.matches)
        rows = [["speaker", "begins", "speaks", "segments", *(["in the gallery"] if best else [])]]
        for name in self.speakers:
            own = [segment for segment in self if segment.speaker == name]
            speaks = sum(segment.end - segment.start for segment in own)
            row = [name, f"{own[0].start:.2f} s", f"{speaks:.2f} s", str(len(own))]
            rows.append([*row, f"{best[name]:.4g}"] if best else row)
        number = len(self.speakers)
        who = "one speaker" if number == 1 else f"{number} speakers"
        head = f"{self.file}: {who} in {self.seconds:.1f} s. {self.how}"
        return "\n".join([head.rstrip(), *aligned(rows)])


def compared(
    results: Sequence[Diarisation],
    reference: File,
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
) -> DiarisationErrors:
    """Compare what was found in recordings with a reference.

    Args:
        results: Of several recordings, whose seconds are added.
        reference: An RTTM file. Its turns of other recordings are left out.
        collar: As `eval.diarisation.diarisation_errors` says.
        skip_overlap: As there.

    Raises:
        LikenessError: The file is malformed, or a recording has no turns in it.
    """
    turns = read_turns(Path(reference))
    files = {result.file for result in results}
    absent = sorted(files - {turn.file for turn in turns})
    if absent:
        raise LikenessError(
            f"{reference}: {len(absent)} of {len(files)} recordings have no turns in it "
            f"({name_first(absent)}); it has to name them without folder and suffix"
        )
    return diarisation_errors(
        [turn for turn in turns if turn.file in files],
        [turn for result in results for turn in result.turns],
        collar=collar,
        skip_overlap=skip_overlap,
    )
