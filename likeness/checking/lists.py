"""Lists of whatever a person has: its items, and trials of subjects that were held out."""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from likeness.checking._files import inspection_of, read_headers
from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import write_trials
from likeness.eval.items.item_lists import write_items
from likeness.eval.items.items import Item, Items, label_numbers
from likeness.eval.items.pairs import draw_pairs
from likeness.eval.metrics.self_matches import without_self_trials
from likeness.eval.option import Option, if_option
from likeness.eval.progress import step
from likeness.eval.types import Trials, counted, name_first, quoted
from likeness.eval.writing import write_text
from likeness.modalities.folders import Modality
from likeness.toolkit.data.splits import hold_out


def items(
    data: Annotated[Any, Option("DATA", path="any")],
    modality: Modality | None = None,
    *,
    columns: str | Mapping[str, str] = "",
    label: Annotated[str, Option(metavar="PATTERN")] = "",
    root: str | Path | None = None,
) -> Items:
    """List the items of whatever you have: their ids, paths and labels, and what a table says.

    Args:
        data: a folder of one folder per label, a list, a table, a Kaldi folder or an .rttm file.
            Tables are .csv, .tsv and .parquet files, and those of pandas or polars; a sequence of
            paths is a list.
        modality: what the items are (default: what most files are, recordings or images).
        columns: which column of a table is which, where its name does not say so, such as
            "label=spk" or "path=clip". It may be a mapping.
        label: take the labels from the paths by a pattern such as "{word}/{label}_NO_*.wav".
        root: the folder that relative paths start from (default: the list's own). For a table in
            memory it is the current one.

    Returns:
        A sequence of `likeness.Item`, which may be stretches of recordings. `items.column("sex")`
        gives the columns start, end, sex, age, session, group and those of your own.

    Raises:
        LikenessError: the data, or files that they name, do not exist; all are counted. Columns or
            rows cannot be understood; they are listed.

    Example:
        >>> import likeness
        >>> items = likeness.items("voices")
        >>> len(items), items[0].id, items[0].label
        (8, 'spk000/utt00.flac', 'spk000')
    """
    from likeness.modalities import folders
    from likeness.models.inputs import check_root, items_of

    listing: Any = {"columns": columns, "label": label, "root": root}
    if not isinstance(data, str | PathLike):
        with items_of(data, modality=modality or "speaker", **listing) as listed:
            return Items.of(listed)
    check_root(root, data, label=label)
    path = Path(data)
    if modality is None:
        modality = folders.list_most(path, passed_over=[], **listing)[1]
    return folders.list_all(path, modality, **listing)


@dataclass(frozen=True)
class Draw:
    """Which items are listed, and how their trials are drawn.

    Attributes:
        split: Whose items are listed: test is the subjects that the recipes `folders` hold out, all
            is everybody, for a model that was trained elsewhere.
        test_share: The share of the subjects that is held out, at least 2.
        seed: The seed of the subjects and of the trials.
        num_trials: The number of trials, at most; half are target, as far as there are any.
        same_sex: Both sides of a trial have one sex (column sex).
        cross_session: Both sides of a target trial are of different sessions (column session).
        durations: Seconds to which recordings are cut, such as 2,4,6; whole leaves them as they
            are. Each is cut at random, to one of those that it is long enough for.
    """

    split: Literal["test", "train", "all"] = "test"
    test_share: Annotated[float, Option(least=0, most=1)] = 0.2
    seed: Annotated[int, Option(least=0)] = 0
    num_trials: Annotated[int, Option(least=2)] = 20_000
    same_sex: bool = False
    cross_session: bool = False
    durations: Annotated[Sequence[str], Option(separator=",")] = ()


@step("drawing trials")
def draw_lists(
    every: Items, draw: Draw = Draw(), *, where: Annotated[str, Option(is_typed=False)]
) -> tuple[Items, Trials]:
    """Hold subjects out, and draw trials among them.

    Args:
        every: All items, with labels.
        draw: What is drawn.
        where: The data, with which messages begin.

    Returns:
        The items of the split in their order, and the trials. With durations, the items have a
        column seconds.

    Raises:
        LikenessError: Items have no label, no sex or no session where it is asked for; there are
            too few subjects; no recording is long enough; or no target trial exists.
    """
    label_numbers(every)  # refuses items without one
    share, rng = draw.test_share, np.random.default_rng(draw.seed)
    chosen = hold_out(every, split=draw.split, test_share=share, seed=draw.seed, where=where)
    uncut, same, across = chosen, None, None
    if draw.durations:
        uncut, chosen = _cut(chosen, draw.durations, rng, where)
    if draw.same_sex:
        same = [name.casefold() for name in _column(chosen, "sex", "--same-sex", where)]
    if draw.cross_session:
        across = _column(chosen, "session", "--cross-session", where)
    try:
        trials = draw_pairs(chosen, draw.num_trials, rng, same=same, across=across)
    except ValueError as error:
        raise LikenessError(f"{where}: {error}") from None
    trials, _ = without_self_trials(trials, _itself(uncut, trials))
    assert trials.target is not None
    if trials.target.all() or not trials.target.any():
        kind = "target" if trials.target.all() else "nontarget"
        raise LikenessError(
            f"{where}: all {len(trials)} trials would be {kind} trials; add subjects or files"
            + if_option(", or leave out --same-sex and --cross-session")
        )
    return chosen, trials


def _cut(
    items: Items, durations: Sequence[str], rng: np.random.Generator, where: str
) -> tuple[Items, Items]:
    """The recordings that are long enough, and a stretch of each at random, with its seconds."""
    try:
        asked = np.array([float(text) for text in durations if text != "whole"])
    except ValueError:
        asked = np.zeros(1)
    if not (asked > 0).all():
        text = quoted(",".join(durations))
        raise LikenessError(f"durations {text}: give seconds, or whole, as in 2,4,whole")
    if "whole" in durations:
        asked = np.append(asked, 0)
    headers = [seen.header for seen in read_headers(items, inspection_of("speaker"))]
    lengths = np.array([header.seconds or 0.0 if header else 0.0 for header in headers])
    fits = (asked <= lengths[:, None]) & (lengths > 0)[:, None]
    is_long = fits.any(axis=1)
    least = f"{asked.min():g} s or more" if asked.min() else "a format that is read"
    if not is_long.any():
        raise LikenessError(f"{where}: none of {len(items):,} items is a recording of {least}")
    if not is_long.all():
        others = items.take(np.flatnonzero(~is_long)).ids
        share = f"{len(others):,} of {counted(len(items), 'item')} ({name_first(others)})"
        warnings.warn(f"left out as no recordings of {least}: {share}", stacklevel=2)
    uncut, lengths, fits = items.take(np.flatnonzero(is_long)), lengths[is_long], fits[is_long]
    drawn = asked[np.argmax(fits * rng.uniform(0.5, 1, fits.shape), axis=1)]
    seconds = np.where(drawn > 0, drawn, lengths)
    offsets = np.floor(1000 * rng.random(len(lengths)) * (lengths - seconds)) / 1000
    cut = []
    for item, length, offset in zip(uncut, drawn.tolist(), offsets.tolist(), strict=True):
        if length:
            start = round((item.stretch or (0.0,))[0] + offset, 9)
            end = round(start + length, 9)
            item = item._replace(id=f"{item.id}@{start:.10g}-{end:.10g}", stretch=(start, end))
        cut.append(item)
    further = {name: [text or "" for text in uncut.column(name)] for name in uncut.further}
    further["seconds"] = [f"{each:g}" for each in seconds.tolist()]
    return uncut, Items.of(cut).relabelled([label or "" for label in uncut.labels], further)


def _itself(chosen: Items, trials: Trials) -> NDArray[np.int64]:
    """The rows of trials of one file or stretch, which the data have under two ids."""
    codes, number = np.arange(len(chosen)), dict[Item, int]()
    for row in np.unique([trials.enrol, trials.probe]).tolist():
        item = chosen[row]
        bare = item._replace(id="", path=Path(os.path.realpath(item.path)), label=None)
        codes[row] = number.setdefault(bare, row)
    return np.flatnonzero(codes[trials.enrol] == codes[trials.probe])


def _column(chosen: Items, name: str, option: str, where: str) -> list[str]:
    """The values of a column that every item needs."""
    values = list(chosen.column(name)) if name in chosen.further else [None] * len(chosen)
    if empty := [id for id, value in zip(chosen.ids, values, strict=True) if value is None]:
        raise LikenessError(
            f"{where}: {len(empty):,} items have no {name} ({name_first(empty)}), which {option} "
            f"needs; fill the column, name it (--columns {name}=COLUMN), or leave the option out"
        )
    return [str(value) for value in values]


def write_lists(out: Path, chosen: Items, trials: Trials, *, durations: bool = False) -> None:
    """Write out/items.txt, out/trials.txt and out/labels.txt, and perhaps out/durations.txt.

    Args:
        out: The folder; made if it does not exist.
        chosen: The items.
        trials: Their trials.
        durations: Whether the items have a column seconds to write.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_items(out / "items.txt", chosen, out)
    write_trials(out / "trials.txt", trials)
    write_labels(out / "labels.txt", chosen)
    if durations:
        rows = zip(chosen.ids, chosen.column("seconds"), strict=True)
        write_text(out / "durations.txt", "".join(f"{id}\t{seconds}\n" for id, seconds in rows))


def write_labels(path: Path, items: Sequence[Item]) -> None:
    """Write lines `id label` of items, separated by a tab, which `--subjects` and `--labels` take.

    Args:
        path: The file, which is written whole or not at all.
        items: The items, with labels.
    """
    write_text(path, "".join(f"{item.id}\t{item.label}\n" for item in items))
