"""The `likeness` command: parse, call one function, print. Everything heavy is imported where it is used, so that scoring starts without torch."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

app = typer.Typer(
    name="likeness",
    help="Pairwise similarity learning: train embedders, score verification trials, export embeddings.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

EXISTING: dict[str, Any] = {"exists": True, "dir_okay": False, "readable": True}


def placed(text: str) -> Path:
    """Where embeddings are to be written: a file, or a LanceDB table by either of its names."""
    from eval.embeddings import located

    return located(text)


def stored(text: str) -> Path:
    """Embeddings that are there."""
    path = placed(text)
    if not path.exists():
        raise ValueError(f"{text!r} does not exist")
    return path


EMBEDDINGS: dict[str, Any] = {"parser": stored, "metavar": "FILE"}
PACK: dict[str, Any] = {"exists": True, "file_okay": False}
PRESET = "With --ijb: whose conventions, a name of docs/protocols.md such as insightface, adaface or opensphere; repeatable (default likeness)."
SWITCH = "With --ijb: change one, SWITCH=VALUE, e.g. keep_norm=false or tar_rule=strict; repeatable."


@app.command(epilog="Example: likeness demo --only face --out demo")
def demo(
    only: Annotated[str, typer.Option(help="One modality, speaker, face or image; without it all of them, each in a folder of OUT, and one report.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the run; must not hold one yet.")] = Path("demo"),
) -> None:
    """Train, embed, score and report on synthetic voices, synthetic faces and real digits, in minutes on two cores. Runs recipes/*/demo.py of the clone."""
    import runpy

    scripts = {script.parent.name: script for script in sorted((Path(__file__).resolve().parents[1] / "recipes").glob("*/demo.py"))}
    if only not in ("", *scripts) or not scripts:
        raise ValueError(
            f"--only {only!r} has no demo; there is: {', '.join(scripts)}"
            if scripts
            else "no recipes/*/demo.py beside the toolkit: run the demo from a clone (pip install -e .)"
        )
    chosen = {only: out} if only else {name: out / name for name in scripts}
    taken = [str(folder) for folder in chosen.values() if (folder / "run").exists()]
    if taken:  # before the first of several trains for nothing
        raise ValueError(f"{' and '.join(taken)} already {'holds a demo' if len(taken) == 1 else 'hold demos'}; choose another --out")
    made = []
    for name, folder in chosen.items():
        if not only:
            say(f"\n{name}: {folder}")
        made.append(runpy.run_path(str(scripts[name]))["main"](folder))
    if len(made) > 1:
        from toolkit.demo import report

        say(f"\nAll of them\n\n{report(made, out)}\nOne report: {out / 'report' / 'index.html'}")


@app.command(epilog="Example: likeness train recipes/speaker/an4.py:arcface optim.lr=0.05 --data ../shared/data --out runs/an4")
def train(
    recipe: Annotated[str, typer.Argument(help="RECIPE.py or RECIPE.py:VARIANT.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Dotted typed fields of the recipe.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the data set.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder for checkpoints and log.")] = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    log: Annotated[list[str] | None, typer.Option(help="Beside log.jsonl: tensorboard or wandb; give it once for each.")] = None,
) -> None:
    """Train a recipe's variant. Many processes: torchrun --nproc-per-node N -m toolkit.cli train ..."""
    from toolkit import distributed
    from toolkit import recipe as recipes
    from toolkit.console import Interrupted
    from toolkit.train import fit

    loaded, variant = recipes.load(recipe)
    chosen = recipes.override(loaded, overrides or [])
    try:
        model = fit(chosen, data=data, out=out, resume=resume, loggers=log or [])
    except Interrupted as stopped:
        say(str(stopped), error=True)
        raise typer.Exit(130) from None
    finally:
        distributed.end()
    if os.environ.get("RANK", "0") == "0":
        say(f"{variant}: trained model in {model}")
        if chosen.test is not None:
            from toolkit.measure import metrics_of, run_test

            metrics = metrics_of(chosen, run_test(chosen, out, data))
            say("test: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))


@app.command(epilog="Example: likeness compare recipes/speaker/an4.py --variants arcface,simple --seeds 3 --data ../shared/data --out runs/an4-compare")
def compare(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="RECIPE.py.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="FIELD=VALUE", help="Dotted typed fields of every variant.")] = None,
    variants: Annotated[str, typer.Option(help="Names, separated by commas (default: all of the file).")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per variant, with the seeds 0 to N - 1.")] = 3,
    data: Annotated[Path, typer.Option(help="Folder of the data set.")] = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder for runs, tables and report; what is finished there is not done again.")] = ...,  # type: ignore[assignment]
    reference: Annotated[str, typer.Option(help="The variant that differences are taken to (default: the best mean of the first metric).")] = "",
    tune: Annotated[int, typer.Option(min=0, help="Trials per variant that search the file's RANGES on validation classes first.")] = 0,
    allow_different: Annotated[str, typer.Option(help="Fields besides the method in which the variants may differ, separated by commas.")] = "",
) -> None:
    """Train variants x seeds under equal data order and budget; a table with standard errors, intervals over subjects and paired differences."""
    from eval.comparison_report import table
    from toolkit import compare as comparing
    from toolkit.console import Interrupted

    chosen, ranges = comparing.load_variants(recipe, [one.strip() for one in variants.split(",") if one.strip()], overrides or [])
    try:
        result = comparing.compare(
            chosen,
            num_seeds=seeds,
            data=data,
            out=out,
            reference=reference,
            allow_different=[one.strip() for one in allow_different.split(",") if one.strip()],
            ranges=ranges,
            num_tuning_trials=tune,
            overrides=overrides or [],
            command=str(context.obj),
            say=say,
        )
    except Interrupted as stopped:
        say(str(stopped), error=True)
        raise typer.Exit(130) from None
    say(f"\n{table(result)}\nReport: {out / 'report' / 'index.html'}")
    if result.failed:
        raise typer.Exit(1)


@app.command(
    epilog="Examples: likeness embed --model runs/an4 --items list.txt --root wavs --out embeddings.npz; "
    "likeness embed --model runs/ms1mv2 --ijb IJBC --flip concat --workers 8 --batch-size 64 --out ijbc.npz"
)
def embed(
    model: Annotated[
        str, typer.Option(help="A run directory, a .safetensors checkpoint, speechbrain:SOURCE, wespeaker:FILE.pt, insightface:PATH or an .onnx file.")
    ],
    out: Annotated[
        Path, typer.Option(help="FILE.npz, .ark (with .scp), .parquet or .h5, or a LanceDB table lancedb:DIR/TABLE.", parser=placed, metavar="FILE")
    ],
    items: Annotated[Path | None, typer.Option(help="LIST: one path per line, or `id path [label]`.", **EXISTING)] = None,
    ijb: Annotated[
        Path | None, typer.Option(help="Instead of a list: the folder of IJB-B or IJB-C (meta, loose_crop); its faces are aligned by its landmarks.", **PACK)
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder that relative paths start from (default: the list's).")] = None,
    bad_items: Annotated[str, typer.Option(help="skip: leave unreadable items out and name them; refuse: write nothing.")] = "skip",
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per batch; changes no embedding.")] = 16,
    flip: Annotated[
        Literal["none", "sum", "mean", "concat"], typer.Option(help="Images: join with the mirror image's embedding; concat holds both, for every IJB preset.")
    ] = "none",
    workers: Annotated[int, typer.Option(min=0, help="Processes that read files.")] = 0,
    frontend: Annotated[Literal["wespeaker", "3dspeaker"], typer.Option(help="Filterbanks that an .onnx or wespeaker: model was trained with.")] = "wespeaker",
    crops: Annotated[int, typer.Option(min=0, help="Speech: the mean over so many evenly spaced crops; 0 = the whole recording.")] = 0,
    crop_seconds: Annotated[float, typer.Option(help="Their length.")] = 4.0,
    chunk_seconds: Annotated[
        float, typer.Option(min=0, help="Speech: the mean over chunks of at most so many seconds, e.g. 60, for recordings of hours; 0 = off.")
    ] = 0.0,
    only_speech: Annotated[bool, typer.Option("--only-speech", help="Speech: leave out pauses, by their energy.")] = False,
) -> None:
    """Embed every item of a list; raw vectors with their norms, ready for `score` or another system.

    Long lists are embedded in shards: the same command goes on where it was stopped. Many processes: torchrun --nproc-per-node N -m toolkit.cli embed ...
    """
    from eval import embeddings
    from toolkit import backends, distributed, extract
    from toolkit.batch import read_items
    from toolkit.embed import pick_device

    if bad_items not in ("skip", "refuse"):
        raise ValueError(f"--bad-items {bad_items!r}: must be skip or refuse")
    embeddings.check_suffix(out)
    if (items is None) == (ijb is None):
        raise ValueError("embed needs --items LIST or --ijb FOLDER, one of them")
    loaded = backends.in_parts(
        backends.load(model, frontend=frontend), crops=crops, crop_seconds=crop_seconds, chunk_seconds=chunk_seconds, only_speech=only_speech
    )
    if ijb is not None:
        loaded, listed = extract.ijb_pack(loaded, ijb)
    elif items is not None:
        listed = read_items(items, root)
    loaded = extract.with_flip(loaded, flip)
    loaded.embedder.to(distributed.start() or pick_device())
    made = extract.extract(loaded, listed, out, batch_size=batch_size, workers=workers, progress=sys.stderr.isatty())
    if made is None:  # another process than the first
        distributed.end()
        return
    found, bad = made
    for one in bad[:20]:
        say(f"skipped {one.id}: {one.reason}", error=True)
    if bad and bad_items == "refuse":
        extract.finish(out)
        raise ValueError(f"{len(bad)} of {len(listed)} items cannot be read; nothing was written (--bad-items skip leaves them out)")
    embeddings.write(out, found)
    extract.finish(out)
    distributed.end()
    say(f"{len(found.ids)} embeddings of {found.matrix.shape[1]} dimensions in {out}" + (f"; {len(bad)} unreadable items left out" if bad else ""))


@app.command(epilog="Example: likeness score --trials trials.txt --embeddings embeddings.npz --cohort cohort.npz --out scores.txt")
def score(
    trials: Annotated[Path, typer.Option(help="Trial list; its columns are detected.", **EXISTING)],
    embeddings: Annotated[Path, typer.Option(help="FILE.npz, .ark or .scp; the enrolment side, or both.", **EMBEDDINGS)],
    out: Annotated[Path, typer.Option(help="Score file: `enrol probe score [label]`; with --calibrate the calibration, a .json file.")],
    probe_embeddings: Annotated[Path | None, typer.Option(help="The probe side, if apart.", **EMBEDDINGS)] = None,
    enrolment: Annotated[
        Path | None, typer.Option(help="`model item item ...` lines: the trials' enrolment ids are models of several items.", **EXISTING)
    ] = None,
    pooling: Annotated[Literal["mean", "norm_weighted"], typer.Option(help="How a model's items are pooled.")] = "mean",
    similarity: Annotated[str | None, typer.Option(help="A name of docs/protocols.md (default: what the embeddings say, else cosine).")] = None,
    subtract_mean: Annotated[Path | None, typer.Option(help="Embeddings whose mean is subtracted from all others.", **EMBEDDINGS)] = None,
    plda: Annotated[Path | None, typer.Option(help="Score by a PLDA of `likeness plda` instead.", **EXISTING)] = None,
    cohort: Annotated[Path | None, typer.Option(help="Embeddings of other subjects: normalise the scores.", **EMBEDDINGS)] = None,
    cohort_subjects: Annotated[Path | None, typer.Option(help="`id subject` list of the cohort: one mean per subject.", **EXISTING)] = None,
    norm: Annotated[Literal["as", "s", "z", "t"], typer.Option(help="Score normalisation with the cohort.")] = "as",
    top_n: Annotated[int, typer.Option(min=1, help="Cohort scores that AS-norm takes.")] = 300,
    calibration: Annotated[Path | None, typer.Option(help="A calibration made with --calibrate: the scores become log-likelihood ratios.", **EXISTING)] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Fit a calibration on these labelled trials instead of writing scores.")] = False,
    quality: Annotated[list[str] | None, typer.Option(help="Quality measure of the calibration: log_norm, log_duration, cohort_mean; repeatable.")] = None,
    durations: Annotated[Path | None, typer.Option(help="`id seconds` list for log_duration.", **EXISTING)] = None,
) -> None:
    """Score a verification trial list, with models of several utterances, score normalisation and calibration where asked for."""
    from eval.score import calibrate_files, score_files

    shared: dict[str, Any] = {
        "probe_embeddings": probe_embeddings,
        "enrolment": enrolment,
        "pooling": pooling,
        "similarity": similarity,
        "cohort": cohort,
        "cohort_subjects": cohort_subjects,
        "top_n": top_n,
        "norm": norm,
        "subtract_mean": subtract_mean,
        "plda": plda,
        "durations": durations,
    }
    if calibrate:
        if calibration:
            raise ValueError("--calibrate fits a calibration and --calibration applies one; give one of them")
        say(calibrate_files(trials, embeddings, out, quality=tuple(quality or ()), **shared))
    else:
        if quality:
            raise ValueError("--quality belongs to --calibrate; a calibration names its own measures when it is applied")
        say(score_files(trials, embeddings, out, calibration=calibration, **shared))


@app.command(epilog="Example: likeness plda --embeddings train.npz --labels utt2spk --lda-dim 150 --out plda.json")
def plda(
    embeddings: Annotated[Path, typer.Option(help="Embeddings of other subjects than those to be scored.", **EMBEDDINGS)],
    out: Annotated[Path, typer.Option(help="FILE.json for `likeness score --plda`.")],
    labels: Annotated[Path | None, typer.Option(help="`id class` list (default: the ids' first folder).", **EXISTING)] = None,
    lda_dim: Annotated[int, typer.Option(min=0, help="Dimensions that LDA leaves; 0 = no LDA.")] = 0,
    length_norm: Annotated[bool, typer.Option(help="Scale the embeddings to one length first.")] = True,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of EM.")] = 10,
) -> None:
    """Fit a two-covariance PLDA (Kaldi's conventions) on labelled embeddings."""
    from eval.plda import fit_files

    say(fit_files(embeddings, out, labels=labels, lda_dim=lda_dim, length_norm=length_norm, iterations=iterations))


@app.command(epilog="Examples: likeness verify a.wav b.wav --model runs/an4 --threshold 0.4; likeness verify a.jpg b.jpg --model insightface:buffalo_l")
def verify(
    first: Annotated[Path, typer.Argument(metavar="A", help="A file of the model's modality.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    model: Annotated[
        str,
        typer.Option(
            help="A run directory, a .safetensors checkpoint, speechbrain:SOURCE, wespeaker:FILE.pt, an .onnx file, or insightface:PATH, a recognition .onnx "
            "file or the folder of a pack such as buffalo_l (InsightFace's own weights: for non-commercial research only)."
        ),
    ],
    detector: Annotated[
        Path | None,
        typer.Option(
            help="Faces: an SCRFD .onnx file with landmarks; A and B are photographs, of whose faces the largest near the centre is aligned (default: that of "
            "insightface:FOLDER; else A and B are aligned crops).",
            **EXISTING,
        ),
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Score from which on both are taken for one subject.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A calibration of `score --calibrate` (default: RUN/calibration.json, if there).", **EXISTING)
    ] = None,
    frontend: Annotated[Literal["wespeaker", "3dspeaker"], typer.Option(help="Filterbanks that an .onnx or wespeaker: model was trained with.")] = "wespeaker",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
) -> None:
    """Are two files of one subject? Score, calibrated probability where there is a calibration, decision, and the norms as a measure of quality."""
    import json

    from eval.files import atomic_path
    from toolkit import backends, verify
    from toolkit.embed import pick_device

    fitted = verify.find_calibration(model, calibration)
    loaded = backends.with_detector(backends.load(model, frontend=frontend), detector or backends.find_detector(model))
    loaded.embedder.to(pick_device())
    found = verify.verify(loaded, first, second, threshold=threshold, calibration=fitted)
    if json_file:
        with atomic_path(json_file) as partial_path:
            document = {"schema": "likeness.verification/1", "files": [str(first), str(second)], **loaded.meta, **found._asdict()}
            partial_path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    say(found.text())


@app.command(
    epilog="Examples: likeness evaluate scores.txt --p-target 0.01 --far 1e-3 --json results.json --report report; "
    "likeness evaluate ijbc.npz --ijb IJBC --preset insightface --preset opensphere --json ijbc.json"
)
def evaluate(
    context: typer.Context,
    scores: Annotated[list[Path], typer.Argument(help="Score files, or with --ijb embeddings of faces; several are set side by side.", **EXISTING)],
    ijb: Annotated[Path | None, typer.Option(help="The folder of IJB-B or IJB-C: evaluate its 1:1 protocol from embeddings of its faces.", **PACK)] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    trials: Annotated[Path | None, typer.Option(help="Trial list with the labels, where the score files have none.", **EXISTING)] = None,
    subjects: Annotated[
        Path | None, typer.Option(help="`id subject` list for the intervals (default: ids' first folder, else links of target trials).", **EXISTING)
    ] = None,
    p_target: Annotated[list[float] | None, typer.Option(help="Prior of minDCF; repeatable (default .01 and .05).")] = None,
    far: Annotated[list[float] | None, typer.Option(help="False-accept rate of TAR@FAR; repeatable (default .1, .01, .001; with --ijb 1e-6 to .1).")] = None,
    eer_method: Annotated[Literal["interpolated", "convex_hull", "nearest"], typer.Option(help="Rule of the EER.")] = "interpolated",
    tar_rule: Annotated[Literal["strict", "nearest", "interpolated"], typer.Option(help="Rule of TAR@FAR.")] = "strict",
    c_miss: Annotated[float, typer.Option(help="Cost of a miss in the DCF.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="Cost of a false accept in the DCF.")] = 1.0,
    llr: Annotated[bool, typer.Option("--llr", help="The scores are log-likelihood ratios: add Cllr, minCllr and the actual DCF.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report into this folder.")] = None,
    embeddings: Annotated[
        list[Path] | None,
        typer.Option(help="What was scored, one file for all score files or one for each: the report adds quality by norm and a map.", **EMBEDDINGS),
    ] = None,
    media: Annotated[
        Path | None, typer.Option(exists=True, help="Folder of the images or recordings that the ids name, or a list `id path`: the report shows them.")
    ] = None,
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples of the intervals; 0 = no intervals (default with --ijb).")] = 1000,
) -> None:
    """EER, minDCF and TAR@FAR with intervals resampled over subjects."""
    refuse_beside_ijb(context, ijb, ("trials", "subjects", "p_target", "eer_method", "tar_rule", "c_miss", "c_fa", "llr", "report", "embeddings", "media"))
    if ijb is not None:
        from eval import ijb_evaluate
        from eval.ijb import FARS, switches_of

        chosen = {name: switches_of(name, switch or []) for name in preset or ["likeness"]}
        drawn = 0 if is_default(context, "resamples") else resamples
        say(ijb_evaluate.evaluate_files(scores, ijb, chosen, fars=tuple(far or FARS), num_resamples=drawn, json_file=json_file))
        return
    from eval.evaluate import evaluate_files
    from eval.report import Switches

    switches = Switches(
        p_targets=tuple(p_target or (0.01, 0.05)),
        fars=tuple(far or (0.1, 0.01, 0.001)),
        c_miss=c_miss,
        c_fa=c_fa,
        eer_method=eer_method,
        tar_rule=tar_rule,
        llr=llr,
        num_resamples=resamples,
    )
    text = evaluate_files(
        scores,
        trial_list=trials,
        subject_list=subjects,
        switches=switches,
        json_file=json_file,
        report_folder=report,
        embeddings=embeddings or (),
        media=media,
        command=str(context.obj),
    )
    say(text)


@app.command(
    epilog="Examples: likeness identify --gallery gallery.npz --probes probes.npz --fpir 0.01 --json results.json; "
    "likeness identify --probes ijbc.npz --ijb IJBC --preset insightface"
)
def identify(
    context: typer.Context,
    probes: Annotated[Path, typer.Option(help="Embeddings to search for, or with --ijb those of all its faces.", **EMBEDDINGS)],
    gallery: Annotated[Path | None, typer.Option(help="Embeddings to search in.", **EMBEDDINGS)] = None,
    ijb: Annotated[Path | None, typer.Option(help="The folder of IJB-B or IJB-C: its 1:N protocol, from embeddings of its faces.", **PACK)] = None,
    preset: Annotated[list[str] | None, typer.Option(help=PRESET)] = None,
    switch: Annotated[list[str] | None, typer.Option(help=SWITCH)] = None,
    gallery_subjects: Annotated[Path | None, typer.Option(help="`id subject` list (default: the ids' first folder).", **EXISTING)] = None,
    probe_subjects: Annotated[Path | None, typer.Option(help="`id subject` list (default: the ids' first folder).", **EXISTING)] = None,
    second_gallery: Annotated[Path | None, typer.Option(help="A gallery apart, such as IJB's G2: open-set rates are the mean of both.", **EMBEDDINGS)] = None,
    fpir: Annotated[list[float] | None, typer.Option(help="False-positive identification rate of TPIR; repeatable (default .01, .1).")] = None,
    rank: Annotated[list[int] | None, typer.Option(help="K of rank-K; repeatable (default 1, 5, 10).")] = None,
    similarity: Annotated[str | None, typer.Option(help="A name of docs/protocols.md (default: what the probes say, else cosine).")] = None,
    protocol: Annotated[
        Literal["open", "closed"], typer.Option(help="open: threshold from non-mated probes; closed: the variant of SimPLE and OpenSphere.")
    ] = "open",
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples of the intervals; 0 = no intervals.")] = 1000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results as JSON.")] = None,
) -> None:
    """Search every probe in a gallery: rank-K and open-set TPIR@FPIR."""
    if (gallery is None) == (ijb is None):
        raise ValueError("identify needs --gallery FILE or --ijb FOLDER, one of them")
    refuse_beside_ijb(context, ijb, ("gallery_subjects", "probe_subjects", "second_gallery", "similarity", "protocol"))
    fpirs, ranks = tuple(fpir or (0.01, 0.1)), tuple(rank or (1, 5, 10))
    if ijb is not None:
        from eval import ijb_evaluate
        from eval.ijb import switches_of

        chosen = {name: switches_of(name, switch or []) for name in preset or ["likeness"]}
        say(ijb_evaluate.identify_files(probes, ijb, chosen, fpirs=fpirs, ranks=ranks, num_resamples=resamples, json_file=json_file))
        return
    from eval.identify import identify_files

    assert gallery is not None
    text = identify_files(
        gallery,
        probes,
        gallery_subjects=gallery_subjects,
        probe_subjects=probe_subjects,
        second_gallery=second_gallery,
        fpirs=fpirs,
        ranks=ranks,
        similarity=similarity,
        protocol=protocol,
        num_resamples=resamples,
        json_file=json_file,
    )
    say(text)


@app.command(epilog="Example: likeness retrieve --embeddings embeddings.npz --labels labels.txt --json results.json")
def retrieve(
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the queries; each searches all others, or --gallery.", **EMBEDDINGS)],
    labels: Annotated[Path | None, typer.Option(help="`id label` list (default: the ids' first folder).", **EXISTING)] = None,
    gallery: Annotated[Path | None, typer.Option(help="Embeddings to search in.", **EMBEDDINGS)] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="`id label` list of the gallery (default: --labels).", **EXISTING)] = None,
    similarity: Annotated[str | None, typer.Option(help="A name of docs/protocols.md (default: what the embeddings say, else cosine).")] = None,
    k: Annotated[list[int] | None, typer.Option("--k", help="K of recall@K and precision@K; repeatable (default 1, 2, 4, 8).")] = None,
    lone: Annotated[Literal["exclude", "zero", "error"], typer.Option(help="Queries without any relevant item.")] = "exclude",
    resamples: Annotated[int, typer.Option(min=0, help="Bootstrap resamples of the intervals; 0 = no intervals.")] = 1000,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results as JSON.")] = None,
) -> None:
    """Recall@K, R-precision and MAP@R of image or voice retrieval, with intervals over classes."""
    from eval.retrieve import retrieve_files

    text = retrieve_files(
        embeddings,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        similarity=similarity,
        ks=tuple(k or (1, 2, 4, 8)),
        lone=lone,
        num_resamples=resamples,
        json_file=json_file,
    )
    say(text)


@app.command(epilog="Example: likeness serve --model runs/an4 --gallery people --threshold 0.4")
def serve(
    model: Annotated[str, typer.Option(help="MODEL, as for `likeness verify`.")],
    gallery: Annotated[Path | None, typer.Option(help="Folder of enrolled subjects, made if it does not exist; without one there is only /verify.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines connect, who then need the token for everything.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 = a free one.")] = 8000,
    token: Annotated[
        str, typer.Option(envvar="LIKENESS_TOKEN", show_envvar=True, help="Needed to enrol and remove (default: made, and printed at the start).")
    ] = "",
    threshold: Annotated[float | None, typer.Option(help="Score from which on two are taken for one subject.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A calibration of `score --calibrate` (default: RUN/calibration.json, if there).", **EXISTING)
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="Faces: an SCRFD .onnx file, so that photographs may be sent (default: that of insightface:FOLDER).", **EXISTING)
    ] = None,
    frontend: Annotated[Literal["wespeaker", "3dspeaker"], typer.Option(help="Filterbanks that an .onnx or wespeaker: model was trained with.")] = "wespeaker",
    allow_host: Annotated[list[str] | None, typer.Option(help="A further host name that requests may ask for, such as a proxy's; repeatable.")] = None,
    rate: Annotated[float, typer.Option(min=0, help="Requests per second and client address; 0 = no limit.")] = 200.0,
    max_megabytes: Annotated[float, typer.Option(min=0.01, max=1024, help="Of one request.")] = 16.0,
    workers: Annotated[int, typer.Option(min=0, help="Uploads worked on at once; 0 = as many as cores, at most 4.")] = 0,
) -> None:
    """A web page and REST: record or upload two voices or photos, see score, probability and quality; manage a gallery. On this machine only, unless told."""
    import logging
    from importlib.util import find_spec

    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "python_multipart")):
        raise ImportError("likeness serve needs FastAPI, uvicorn and python-multipart; run `pip install 'likeness[serve]'`")
    from toolkit import backends
    from toolkit import serve as serving
    from toolkit.embed import pick_device
    from toolkit.serve_guard import Limits
    from toolkit.verify import find_calibration

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    fitted = find_calibration(model, calibration)
    loaded = backends.with_detector(backends.load(model, frontend=frontend), detector or backends.find_detector(model))
    loaded.embedder.to(pick_device())
    serving.serve(
        loaded,
        gallery=gallery,
        host=host,
        port=port,
        token=token,
        threshold=threshold,
        calibration=fitted,
        allow_hosts=allow_host or (),
        limits=Limits(max_bytes=round(max_megabytes * 2**20), rate=rate, workers=workers or min(4, os.cpu_count() or 1)),
        say=say,
    )


@app.command(epilog="Example: likeness export runs/an4 --onnx an4.onnx")
def export(
    model: Annotated[str, typer.Argument(help="MODEL: a run directory, a .safetensors checkpoint, speechbrain:SOURCE or wespeaker:FILE.pt.")],
    onnx: Annotated[Path, typer.Option(help="FILE.onnx; it is a MODEL itself, and all that other systems need.")],
    size: Annotated[str, typer.Option(metavar="HEIGHTxWIDTH", help="Of the images, e.g. 112x112, where the model does not say it.")] = "",
    frontend: Annotated[Literal["wespeaker", "3dspeaker"], typer.Option(help="Filterbanks that a wespeaker: model was trained with.")] = "wespeaker",
) -> None:
    """Write front-end and network as one ONNX file, if it gives the same embeddings as torch: waves or images in, raw embeddings out, any batch and length."""
    from toolkit import backends
    from toolkit import export as exporting

    height, cross, width = size.lower().partition("x")
    if size and not (cross and height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise ValueError(f"--size {size!r}: write HEIGHTxWIDTH in pixels, e.g. 112x112")
    loaded = backends.load(model, frontend=frontend)
    found = exporting.export(loaded, onnx, size=(int(height), int(width)) if size else None)
    say(
        f"ONNX model of {loaded.embedder.dim} dimensions in {onnx}; on {found.num_items} inputs it agrees with torch to a cosine distance of "
        f"{found.distance:.1e} and norms to {found.norm_error:.1e}"
    )


@app.command(epilog="Example: likeness prepare fsdd --data data")
def prepare(
    dataset: Annotated[str, typer.Argument(help="Its name; without one, the data sets that there are.")] = "",
    data: Annotated[Path, typer.Option(help="Folder for the data; made if it does not exist.")] = Path("data"),
    keep: Annotated[bool, typer.Option("--keep", help="Leave fetched archives in DATA/downloads.")] = False,
) -> None:
    """Fetch a data set with checksums where the licence lets us; else say what to fetch. Then count what is there."""
    from toolkit import datasets
    from toolkit import prepare as preparing

    if not dataset:
        say(datasets.table())
    else:
        preparing.prepare(datasets.named(dataset), data, keep=keep, say=say)


def is_default(context: typer.Context, name: str) -> bool:
    """Whether an option was left out."""
    source = context.get_parameter_source(name)
    return source is None or source.name == "DEFAULT"


def refuse_beside_ijb(context: typer.Context, ijb: Path | None, others: tuple[str, ...]) -> None:
    """ValueError for options that --ijb leaves without meaning, and for --preset and --switch without it."""
    refused = [f"--{name.replace('_', '-')}" for name in (others if ijb is not None else ("preset", "switch")) if not is_default(context, name)]
    if refused:
        raise ValueError(
            f"{' and '.join(refused)} {'does' if len(refused) == 1 else 'do'} not go with --ijb, whose protocol is set by --preset and --switch; leave it out"
            if ijb is not None
            else f"{' and '.join(refused)} {'is' if len(refused) == 1 else 'are'} for --ijb FOLDER; give that too, or leave it out"
        )


def say(text: str, *, error: bool = False) -> None:
    typer.echo(text, err=error)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; wrong input ends with exit code 2 and one sentence, Ctrl-C with 130. LIKENESS_TRACEBACK=1 shows the traceback as well."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(arguments, obj=shlex.join(["likeness", *arguments]))
    except Exception as error:
        if os.environ.get("LIKENESS_TRACEBACK") or not isinstance(error, (ValueError, KeyError, OSError, ImportError)):
            raise
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        say(f"likeness: {text}", error=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
