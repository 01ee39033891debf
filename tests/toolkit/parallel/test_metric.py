"""Metrics over batches and over processes are those of the whole set."""

import json
from pathlib import Path

import pytest
import torch

from likeness.metrics import eer, min_dcf, retrieval_metrics
from likeness.recipe import verification_metric
from tests.toolkit.parallel import measured
from tests.toolkit.training.tiny_runs import torchrun


def whole() -> tuple[float, dict[str, float]]:
    rows, labels = measured.values(0, 40)
    scores = rows[:, 0].numpy()
    target = labels.numpy() == 0
    return eer(scores[target], scores[~target]), retrieval_metrics(rows, labels, ks=(1, 2))


def test_batches_give_what_the_whole_set_gives():
    assert measured.measured([(0, 7), (7, 30), (30, 40)]) == whole()


def test_every_process_measures_the_whole_set(tmp_path):
    done = torchrun(Path(measured.__file__), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for number in (0, 1):
        assert json.loads((tmp_path / f"{number}.json").read_text()) == list(whole())


def test_reset_forgets_and_settings_arrive():
    metric = verification_metric(min_dcf, p_target=0.5)
    metric.update(torch.tensor([0.0, 1.0]), torch.tensor([1, 0]))  # the wrong way round
    metric.reset()
    scores, labels = torch.tensor([0.9, 0.2, 0.5, 0.1]), torch.tensor([True, True, False, False])
    metric.update(scores[:2].requires_grad_(), labels[:2])
    metric.update(scores[2:].to(torch.bfloat16), labels[2:])
    assert metric.compute() == min_dcf([0.9, 0.2], [0.5, 0.1], p_target=0.5)


def test_wrong_input_gets_a_sentence():
    metric = verification_metric(eer)
    with pytest.raises(ValueError, match="nothing to measure"):
        metric.compute()
    with pytest.raises(ValueError, match="2 values have 3 labels"):
        metric.update(torch.zeros(2), torch.zeros(3))
    metric.update(torch.zeros(2), torch.tensor([-1, 1]))
    with pytest.raises(ValueError, match="1 for targets"):
        metric.compute()
