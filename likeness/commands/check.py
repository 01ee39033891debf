"""`likeness check`: what is wrong with a data set, before anything trains on it."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from likeness.commands.options import (
    DATA_HELP,
    Columns,
    JsonFile,
    LabelPattern,
    Modality,
    Root,
    Trust,
    each_once,
    input_file,
    refuse_idle,
    writes,
)
from likeness.toolkit.console import say

if TYPE_CHECKING:
    from likeness.checking.files import Modality as Known

app = typer.Typer()
# Recordings and images that people have and nothing here reads.
_UNREAD = (
    *(".heic", ".heif", ".avif", ".jxl", ".dng", ".cr2", ".nef", ".arw"),
    *(".wma", ".amr", ".3gp", ".mkv", ".mov", ".avi", ".webm"),
)


@app.command(
    epilog="Examples: likeness check voices; likeness check voices.csv --out items.csv; "
    "likeness check faces --modality face --model runs/faces --page findings"
)
def check(
    context: typer.Context,
    data: Annotated[Path, typer.Argument(help=DATA_HELP)],
    modality: Modality = None,
    columns: Columns = None,
    label: LabelPattern = "",
    root: Root = None,
    test: Annotated[
        Path | None,
        typer.Option(
            metavar="TEST_DATA",
            help="The data that a model will be tested on, to find what is in both.",
        ),
    ] = None,
    decode: Annotated[
        bool | None,
        typer.Option(
            "--decode/--headers",
            help="Decode every file, or read headers only (default: decode up to 5,000 files of "
            "up to 10 hours in all).",
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        input_file(
            "Embeddings of the items by their ids, to find labels that are likely wrong and "
            "near copies."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model that embeds the items here, in place of --embeddings."),
    ] = None,
    trust: Trust = None,
    near: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="The cosine from which on two items are called near copies."
        ),
    ] = 0.98,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="ITEMS.csv",
            help="Write the items that can be trained on, for `train --data`. What is left out is "
            "in ITEMS.left-out.csv, with the reasons.",
            callback=writes(".csv"),
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="Leave items whose label is likely wrong, and near copies, out of --out too.",
        ),
    ] = False,
    json_file: JsonFile = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write FOLDER/index.html, a page that shows and plays what was found.",
            file_okay=False,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with exit code 1 if anything was found.")
    ] = False,
) -> None:
    """Say what is wrong with a data set before anything trains on it.

    That is files that cannot be read, copies, labels that look wrong, and what is in the training
    and in the test data. Findings are no error: the exit code is 0 unless --strict is given. With
    embeddings or a model, the labels that are likely wrong are found by similarity.
    """
    import likeness
    from likeness.checking import report
    from likeness.checking.check import Settings
    from likeness.checking.check import check as check_items
    from likeness.files import embeddings_of
    from likeness.lists import modality_of
    from likeness.modalities.folders import suffixes_of
    from likeness.toolkit.data.listing import is_kaldi_folder, list_items

    refuse_idle(context, ("near", "clean"), "--embeddings or --model", embeddings or model)
    with each_once():
        listing: dict[str, Any] = {"columns": ",".join(columns or ()), "label": label, "root": root}
        kind = modality or modality_of(data, **listing)
        passed_over: list[str] = []
        listing |= {"missing": "leave", "passed_over": passed_over, "suffixes": suffixes_of(kind)}
        items = list_items(data, **listing)
        plain = data.is_dir() and not label and not is_kaldi_folder(data)
        if plain:
            _warn_of_unread(data, kind)
        vectors = None if embeddings is None else embeddings_of(embeddings)
        if model is not None:
            there = [item for item in items if item.path.is_file()]
            vectors = likeness.load(model, trust=trust or ()).embed(there)
        checked = check_items(
            items,
            kind,
            data=str(data),
            test=None if test is None else list_items(test, **listing),
            embeddings=vectors,
            settings=Settings(decode, near, clean, data if plain else None),
            passed_over=list(dict.fromkeys(passed_over)),
        )
    say(report.as_text(checked))
    if json_file is not None:
        report.write_json(json_file, checked)
    if page is not None:
        report.write_page(page, checked, command=context.obj or "likeness check")
        say(f"the page is {page / 'index.html'}")
    if out is not None:
        report.write_items_csv(out, checked)
        dropped = sum(map(bool, checked.left_out))
        say(
            f"{len(items) - dropped:,} items to train on in {out}; {dropped:,} left out, with "
            f"their reasons in {report.left_out_path(out)}"
        )
    if strict and checked.findings:
        raise typer.Exit(1)


def _warn_of_unread(folder: Path, modality: Known) -> None:
    """Warn of recordings and images that are not read: of other formats, or of the other kind."""
    from likeness.modalities.folders import suffixes_of
    from likeness.toolkit.data.listing import files_below

    others = suffixes_of("image" if modality == "speaker" else "speaker")
    unread = {*_UNREAD, *others} - set(suffixes_of(modality))
    counts = Counter(item.suffix for item in files_below(folder, unread, passed_over=[]))
    if counts:
        formats = ", ".join(f"{suffix} {count:,}" for suffix, count in counts.most_common())
        what = "recordings" if modality == "speaker" else "images"
        warnings.warn(
            f"{folder}: files were passed over that cannot be read as {what} ({formats}); convert "
            "them, as to .jpg or .wav, or say with --modality what is meant",
            stacklevel=2,
        )
