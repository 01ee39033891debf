"""`likeness check`: what is wrong with a data set, before anything trains on it."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from eval.errors import LikenessError
from likeness.commands.options import (
    EMBEDDINGS,
    Columns,
    LabelPattern,
    Root,
    Trust,
    refuse_idle,
)
from likeness.missing import refuse_missing_folder
from toolkit.console import say, warn

if TYPE_CHECKING:
    from eval.types import Embeddings
    from likeness.checking.files import Modality
    from toolkit.data.items import Items

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
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder whose sub-folders are the labels, a list, a .csv, .tsv or .parquet "
            "file, a Kaldi folder, or an .rttm file."
        ),
    ],
    modality: Annotated[
        Literal["speaker", "face", "image"] | None,
        typer.Option(
            help="What the items are (default: speaker where most files are recordings, else "
            "image)."
        ),
    ] = None,
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
        typer.Option(
            help="Embeddings of the items by their ids, to find labels that are likely wrong and "
            "near copies.",
            **EMBEDDINGS,
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
        ),
    ] = None,
    clean: Annotated[
        bool,
        typer.Option(
            "--clean",
            help="Leave items whose label is likely wrong, and near copies, out of --out too.",
        ),
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all findings into this JSON file.")
    ] = None,
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
    """Say what is wrong with a data set before anything trains on it: files that cannot be read,
    copies, labels that look wrong, and what is in the training and in the test data.

    Findings are no error: the exit code is 0 unless --strict is given. With embeddings or a model,
    the labels that are likely wrong are found by similarity.
    """
    from likeness.checking import report
    from likeness.checking.check import Settings
    from likeness.checking.check import check as check_items
    from toolkit.data.kaldi_folder import is_kaldi_folder

    if embeddings is not None and model is not None:
        raise LikenessError("--embeddings and --model do not go together; leave one out")
    refuse_idle(context, ("near", "clean"), "--embeddings or --model", embeddings or model)
    refuse_idle(context, ("clean",), "--out", out)
    refuse_idle(context, ("trust",), "--model", model)
    _refuse_outputs(data, out, json_file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        listing = ",".join(columns or ()), label, root
        plain = data.is_dir() and not label and not is_kaldi_folder(data)
        passed_over: list[str] = []
        items, kind = _listed(data, modality, *listing, passed_over)
        if plain:
            _warn_of_unread(data)
        tested = None if test is None else _listed(test, kind, *listing, passed_over)[0]
        vectors = _vectors(embeddings, model, trust or [], items, kind)
        checked = check_items(
            items,
            kind,
            data=str(data),
            test=tested,
            embeddings=vectors,
            settings=Settings(decode, near, clean, data if plain else None),
            passed_over=list(dict.fromkeys(passed_over)),
        )
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn(text)
    say(report.as_text(checked))
    if json_file is not None:
        report.write_json(json_file, checked)
    if page is not None:
        from likeness.checking.page import write_page

        write_page(page, checked, command=context.obj or "likeness check")
        say(f"the page is {page / 'index.html'}")
    if out is not None:
        report.write_items_csv(out, checked)
        dropped = sum(map(bool, checked.left_out))
        say(
            f"{len(items) - dropped:,} items to train on in {out}; {dropped:,} left out, with "
            f"their reasons in {report.left_out_path(out)}"
        )
    if step := report.next_step(checked, out):
        say(step)
    if strict and checked.findings:
        raise typer.Exit(1)


def _refuse_outputs(data: Path, out: Path | None, json_file: Path | None) -> None:
    """Refuse what could not be written after the work, or would replace the data."""
    from likeness.checking.report import left_out_path

    written = [path for path in (out, json_file) if path is not None]
    for path in [*written, *([left_out_path(out)] if out is not None else [])]:
        refuse_missing_folder(path)
        if path.is_file() and data.is_file() and path.samefile(data):
            raise LikenessError(f"{path} is the data that are checked; name another file")
    if out is not None and out.suffix.lower() != ".csv":
        raise LikenessError(f"--out {out}: a list to train on ends in .csv; name it so")


def _listed(
    data: Path,
    modality: Modality | None,
    columns: str,
    label: str,
    root: Path | None,
    passed_over: list[str],
) -> tuple[Items, Modality]:
    """The items of the data and what they are."""
    from likeness.checking.files import modality_of
    from modalities.folders import suffixes_of
    from toolkit.data.listing import list_items

    def listed(suffixes: tuple[str, ...]) -> Items:
        return list_items(
            data,
            suffixes=suffixes,
            columns=columns,
            label=label,
            root=root,
            missing="leave",
            passed_over=passed_over,
        )

    if modality is not None:
        return listed(suffixes_of(modality)), modality
    items = listed((*suffixes_of("speaker"), *suffixes_of("image")))
    kind = modality_of(items, str(data))
    others = sum(item.suffix not in suffixes_of(kind) for item in items)
    if not others:
        return items, kind
    if data.is_dir():
        items = listed(suffixes_of(kind))
    warnings.warn(
        f"{data}: {others:,} files are no {'recordings' if kind == 'speaker' else 'images'}, as "
        "most are, and "
        "cannot be read as such; --modality says which are meant",
        stacklevel=2,
    )
    return items, kind


def _warn_of_unread(folder: Path) -> None:
    """Warn of recordings and images in formats that nothing here reads."""
    from toolkit.data.tree import anywhere

    counts = Counter(item.suffix for item in anywhere(folder, _UNREAD, passed_over=[]))
    if counts:
        formats = ", ".join(f"{suffix} {count:,}" for suffix, count in counts.most_common())
        warnings.warn(
            f"{folder}: files were passed over, because their formats are not read ({formats}); "
            "convert them, as to .jpg or .wav",
            stacklevel=2,
        )


def _vectors(
    embeddings: Path | None, model: str | None, trust: list[str], items: Items, modality: Modality
) -> Embeddings | None:
    """The embeddings of the items, read or made."""
    if embeddings is not None:
        from eval.formats.embeddings import read

        return read(embeddings)
    if model is None:
        return None
    from likeness.missing import refuse_missing_model

    refuse_missing_model(model)
    import likeness

    loaded = likeness.load(model, trust=trust)
    if (loaded.modality == "speaker") != (modality == "speaker"):
        raise LikenessError(
            f"{model} is a {loaded.modality} model, and the data are of the modality {modality}; "
            "take another model, or say what the data are with --modality"
        )
    readable = [item for item in items if item.path.is_file()]
    return loaded.embed(readable)
