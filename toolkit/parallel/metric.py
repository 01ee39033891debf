"""Metrics over many batches and processes, for training loops of others."""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.retrieval import retrieval_metrics
from likeness.toolkit.parallel.distributed import gather, gather_objects

Result = TypeVar("Result")


class Metric(Generic[Result]):
    """Collect values and labels batch by batch, and measure them once, in torchmetrics' manner.

    `verification_metric` and `retrieval_metric` make the usual ones. With several processes
    `compute` measures the values of all of them, which stay on their device until then. A sampler
    that repeats items to fill its last batch, as torch's DistributedSampler does, has them counted
    twice; give `drop_last=True` or a sampler that repeats none.

    Args:
        measure: Measures arrays of values (N, ...) and labels (N,).

    Example:
        >>> metric = Metric(lambda values, labels: float(values[labels == 1].mean()))
        >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([1, 0]))
        >>> metric.update(torch.tensor([4.0]), torch.tensor([1]))
        >>> metric.compute()
        2.5
    """

    def __init__(self, measure: Callable[[Any, Any], Result]):
        self.measure = measure
        self.reset()

    def update(self, values: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            values: (B, ...), for example embeddings or scores.
            labels: (B,).

        Raises:
            LikenessError: The numbers of values and labels differ.
        """
        if len(values) != len(labels):
            raise LikenessError(f"{len(values)} values have {len(labels)} labels; give one each")
        values = values.detach()
        half = values.dtype in (torch.float16, torch.bfloat16)  # as under autocast
        self._values.append(values.float() if half else values)
        self._labels.append(labels.detach())

    def compute(self) -> Result:
        """Measure what all processes have collected; every process gets the same result.

        Raises:
            LikenessError: A process has collected nothing, or the measure refuses the values.
        """
        if not all(gather_objects(len(self._values))):
            raise LikenessError("there is nothing to measure; call update in every process first")
        values, labels = (gather(torch.cat(each)) for each in (self._values, self._labels))
        return self.measure(values.cpu().numpy(), labels.cpu().numpy())

    def reset(self) -> None:
        """Forget what was collected."""
        self._values: list[Tensor] = []
        self._labels: list[Tensor] = []


def verification_metric(measure: Callable[..., Result], **settings: Any) -> Metric[Result]:
    """A metric of scores (B,) and labels (B,), which are 1 for target trials and 0 for others.

    Args:
        measure: Any of `likeness.metrics` that takes target and nontarget scores, such as eer,
            min_dcf or tar_at_far.
        **settings: Its keyword arguments.

    Example:
        >>> from likeness.metrics import eer
        >>> metric = verification_metric(eer)
        >>> metric.update(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([1, 1, 1]))
        >>> metric.update(torch.tensor([0.4, 0.2, 0.1]), torch.tensor([0, 0, 0]))
        >>> metric.compute()
        0.3333333333333333
    """

    def of_trials(scores: Any, labels: Any) -> Result:
        if not np.isin(labels, (0, 1)).all():
            raise LikenessError("labels of trials must be 1 for targets and 0 for nontargets")
        return measure(scores[labels == 1], scores[labels == 0], **settings)

    return Metric(of_trials)


def retrieval_metric(**settings: Any) -> Metric[dict[str, float]]:
    """A metric of embeddings (B, D) and their classes (B,): recall@K, MAP@R and what
    `likeness.metrics.retrieval_metrics` has besides.

    Args:
        **settings: Keyword arguments of retrieval_metrics, such as ks=(1, 10) and
            similarity="euclidean" (default: cosine).

    Example:
        >>> metric = retrieval_metric(ks=(1,))
        >>> metric.update(torch.tensor([[1.0, 0.0], [1.0, 0.1]]), torch.tensor([3, 3]))
        >>> metric.compute()["recall@1"]
        1.0
    """
    return Metric(partial(retrieval_metrics, **settings))
