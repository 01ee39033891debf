"""Measures likeness:face on three sets of faces, and its thresholds and calibration.

    python benchmarks/face.py --data ../shared/data [--package likeness/face]

Measures: EER, and FAR and FRR at the thresholds that had a FAR of 1 % or .1 % on the two other
    sets, with 95 % intervals over people. The sets are ORL (subjects 1-20), Yale and Georgia Tech
    (30 x 40 pixels). All pairs of pictures are trials, compared by the cosine. With --package,
    thresholds and calibration of the three sets with equal shares are written there.
    What it does not show: photographs of other years, cameras and places.
Peers: none.
Limit: none.
Needs: `likeness prepare face`, and orl/, yale/ and gt/ in the folder of --data.
Takes: five CPU minutes.
Gives: the table "Ready models" of docs/reference/results.md, and likeness/face/CARD.md.
"""

from pathlib import Path

from folds import errors_of, with_interval
from performance import parser_of, row, table
from small_voice import FARS, Tested, rates_with_intervals, threshold_at, write_numbers

import likeness
from likeness import Item
from likeness.eval.items.pairs import all_pairs
from likeness.eval.metrics.similarity import score_trials

SETS = {"orl": "ORL 1-20", "yale": "Yale", "gt": "Georgia Tech"}


def tested(model: likeness.Model, folder: Path) -> Tested:
    """The scores of all pairs of pictures in a folder of people."""
    embeddings = model.embed(folder)
    trials = all_pairs([Item(id, folder / id, id.partition("/")[0]) for id in embeddings.ids])
    return Tested(trials, score_trials(trials, embeddings, similarity=model.similarity))


def main() -> None:
    """Print the table, and write thresholds and calibration where they are wanted."""
    package = ("package", None, "folder for thresholds and calibration")
    arguments = parser_of(__doc__, "data", package).parse_args()
    model = likeness.load("likeness:face", calibration=False)
    parts = [tested(model, arguments.data / name) for name in SETS]
    table("tested on", "pictures", "EER %", *(f"at FAR {far:.1%}" for far in FARS))
    for name, part in zip(SETS.values(), parts, strict=True):
        others = [other for other in parts if other is not part]
        rates = [rates_with_intervals(part, threshold_at(others, far)) for far in FARS]
        size = len({*part.trials.enrol_ids, *part.trials.probe_ids})
        row(name, size, with_interval(errors_of(part.trials, part.values), "eer"), *rates)
    if arguments.package:
        name = "ORL 1-20, Yale and Georgia Tech"
        write_numbers(arguments.package, model.meta, parts, name, name)


if __name__ == "__main__":
    main()
