"""`likeness verify`: compare two files, or many pairs of them, by a model."""

from pathlib import Path
from typing import Annotated

from likeness.commands._outputs import Force, JsonFile, SaveTo, write_rows_or_say
from likeness.commands._signature import Call, command, refuse_idle
from likeness.eval.errors import LikenessError
from likeness.eval.option import Option
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.threshold_files import Rule, path_for_scores
from likeness.models.bundled import FINDING_MODELS, about, model_for
from likeness.models.model import Model, load
from likeness.models.verdicts import NO_RATES, Verification, VerifiedPairs, list_pairs
from likeness.toolkit.console import say


@command(
    load,
    Model.verify,
    Model.verify_pairs,
    epilog="Examples: likeness verify a.wav b.wav; likeness verify a.jpg b.jpg; likeness verify "
    "a.jpg b.jpg --model insightface:buffalo_l; likeness verify --pairs pairs.csv --model "
    "runs/an4 --far 0.01 --out verdicts.csv; likeness verify a.wav a.jpg b.wav b.jpg --fusion "
    f"fusion.json. Models: {FINDING_MODELS}.",
)
def verify(
    loaded_by: Call[Model],
    verified_by: Call[Verification],
    pairs_by: Call[VerifiedPairs],
    *,
    files: Annotated[
        list[Path] | None,
        Option("A B", path="any", help="Two recordings or images; four with --fusion."),
    ] = None,
    out: Annotated[
        Path | None,
        Option(help="With --pairs: the table to write.", path="output", endings=(".csv", ".tsv")),
    ] = None,
    json: JsonFile = None,
    save_to: SaveTo = None,
    force: Force = False,
) -> None:
    """Compare two files, or many pairs of them: are they of one subject?

    Recordings need no --model: likeness:voice comes with Likeness. Nor do photographs of faces:
    likeness:face is made by `likeness prepare face`.
    The command prints the score, the norms, a decision where there is a threshold, and a
    probability where there is a calibration. With --pairs every pair gets a row, and every file is
    embedded once. Pairs with labels give error rates and thresholds too, which --json writes and
    --save-to keeps for --far. With --fusion a recording and a picture of each person give one
    score, one probability and one decision.
    """
    has_pairs, is_fused, files = "--pairs" in pairs_by, "--fusion" in verified_by, files or []
    if is_fused:
        loaded_by.refuse_idle("beside --fusion", "--calibration")
    if has_pairs:
        if is_fused:
            raise LikenessError(
                "--pairs compares by one model; score the pairs by each model, and join the two "
                "files by `likeness score A B --fusion FILE`"
            )
        verified_by.refuse_idle("beside --pairs", "--beside")
    else:
        pairs_by.refuse_idle("without --pairs", "--root", "--columns", "--workers", "--batch-size")
        refuse_idle("without --pairs", {"--out": out, "--save-to": save_to})
    if len(files) != (0 if has_pairs else 2) and not is_fused:
        raise LikenessError("give two files, four with --fusion FILE, or --pairs LIST and none")
    if "--far" not in verified_by:
        loaded_by.refuse_idle("without --far", "--thresholds")
    Rule(verified_by["--threshold"], verified_by["--far"])  # refuses what contradicts itself
    if has_pairs and pairs_by["--pairs"].is_file():  # a pipe is read once, by the function
        columns = pairs_by["--columns"] or ""
        pairs, _ = list_pairs(pairs_by["--pairs"], pairs_by["--root"], columns)
        files = [Path(file) for file in pairs[0][:2]]
        if (json or save_to) and len({pair.label for pair in pairs} - {None}) < 2:
            raise LikenessError(NO_RATES)
    name = loaded_by["--model"] if "--model" in loaded_by else model_for(files)
    model = loaded_by(model=name)
    if "--model" not in loaded_by:
        say(about(name), error=True)
    if not has_pairs:
        verified = verified_by(model, *((files[:2], files[2:]) if is_fused else files))
        if json:
            verified.save(json, files=files, meta=model.loaded.meta)
        say(str(verified))
        return
    if save_to:
        path_for_scores(save_to, Origin("", model.meta))  # refuses another model's before the work
    verified_pairs = pairs_by(model)
    write_rows_or_say(verified_pairs, out)
    if not (json or save_to):
        return
    evaluation = verified_pairs.evaluation()
    if evaluation is None:
        raise LikenessError(NO_RATES)
    if json:
        evaluation.save(json)
    if save_to:
        stored = evaluation.save_thresholds(save_to, replaces=force)
        say(f"{stored}\nkept with {save_to}", error=out is None)
