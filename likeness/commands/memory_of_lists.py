"""Whether long work on lists fits into the memory that is allowed."""

from __future__ import annotations

from pathlib import Path

from eval.errors import LikenessError

_BASE = 150_000_000  # bytes of the program itself and of blocks
# Bytes for each trial, measured with lists of ten million.
SCORING, EVALUATING, RESAMPLING = 45, 60, 85


def refuse_beyond(
    memory: str | None, work: str, lists: list[Path], *, per_trial: int, matrices: int = 0
) -> None:
    """Refuses work on lists that takes more memory than is allowed, before it begins.

    Args:
        memory: What is allowed, such as 8G; None allows all.
        work: What the work is, such as "scoring".
        lists: The lists of trials, of which the number of lines is estimated from a sample.
        per_trial: Bytes for each trial.
        matrices: Bytes of the embeddings.

    Raises:
        LikenessError: It takes more, or `memory` is no size.
    """
    if memory is None:
        return
    from eval.formats.trials import estimated_size
    from eval.memory import parse_size

    allowed = parse_size(memory)
    num_trials = sum(map(estimated_size, lists))
    needed = _BASE + 2 * matrices + per_trial * num_trials
    if needed > allowed:
        raise LikenessError(
            f"{work} about {num_trials:,} trials takes about {_text(needed)} of memory, but "
            f"--memory allows {_text(allowed)}; allow {_text(needed)}, or split the list"
        )


def stored_bytes(path: Path) -> int:
    """The bytes of a file, or of all files of a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _text(size: int) -> str:
    return f"{-(-size * 10 >> 30) / 10:.1f}G" if size >= 1 << 30 else f"{-(-size >> 20)}M"
