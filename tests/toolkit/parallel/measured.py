"""What test_metric.py runs in every process: torchrun ... measured.py FOLDER."""

import json
import sys
from pathlib import Path

import torch

from likeness.metrics import eer
from likeness.recipe import retrieval_metric, verification_metric
from likeness.toolkit.parallel import distributed


def values(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows start:stop of one set of 40 embeddings and labels."""
    drawn = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    return drawn[start:stop], (torch.arange(40) % 5)[start:stop]


def measured(parts: list[tuple[int, int]]) -> tuple[float, dict[str, float]]:
    """An EER and the metrics of retrieval over the parts of this process."""
    trials, retrieval = verification_metric(eer), retrieval_metric(ks=(1, 2))
    for start, stop in parts:
        rows, labels = values(start, stop)
        trials.update(rows[:, 0], (labels == 0).long())
        retrieval.update(rows, labels)
    return trials.compute(), retrieval.compute()


if __name__ == "__main__":
    distributed.start()
    number = distributed.rank()
    made = measured([[(0, 10), (10, 13)], [(13, 40)]][number])
    (Path(sys.argv[1]) / f"{number}.json").write_text(json.dumps(made), encoding="utf-8")
    distributed.end()
