"""Batches of a run: this process's part of each, read in processes of their own, on the device; and
what a network learns from them before the first step.
"""

import atexit
import multiprocessing
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from likeness.eval.errors import LikenessError
from likeness.eval.progress import track
from likeness.toolkit.data.batch import Draw, Views, make_room_for_sockets
from likeness.toolkit.data.readers import KILLED
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.data.sampling import Index, Sampling, draws
from likeness.toolkit.losses.common import turn_to_means
from likeness.toolkit.losses.contract import Estimated
from likeness.toolkit.parallel import distributed
from likeness.toolkit.training._ring import Read, read_batches
from likeness.toolkit.training.recipe import Compute
from likeness.toolkit.training.run import Run


def part_of(batches: Iterator[list[Draw]]) -> Iterator[list[Draw]]:
    """This process's part of every batch: parts differ by one item at most and make up the batch in
    rank order.
    """
    rank, world = distributed.rank(), distributed.world()
    for batch in batches:
        yield batch[len(batch) * rank // world : len(batch) * (rank + 1) // world]


def loader_of(
    views: Views, order: Iterator[list[Draw]], compute: Compute, device: torch.device, *, seed: int
) -> Iterator[Read]:
    """Batches of views in the given order, read in compute.workers processes, on the device."""
    make_room_for_sockets()
    _end_readers_at_exit()
    batches = read_batches(views, order, compute, seed=seed, pin=device.type == "cuda")
    return _on_device(batches, device, compute.is_channels_last(device.type))


def _on_device(reads: Iterator[Read], device: torch.device, channels_last: bool) -> Iterator[Read]:
    """Batches on the device. A GPU copies each while it computes the steps before, which were
    launched in another stream.
    """
    stream: Any = None
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for batch, bad in reads:
        if stream is not None:
            stream.synchronize()  # the ring may soon overwrite the batch before
        if batch is not None:
            with torch.cuda.stream(stream):
                batch = batch.to(device, channels_last)
            if stream is not None:
                computing = torch.cuda.current_stream(device)
                computing.wait_stream(stream)
                for tensor in batch:
                    if tensor is not None:
                        tensor.record_stream(computing)
        yield batch, bad


@cache
def _end_readers_at_exit() -> None:
    """End reading processes with this one: they leave the SIGTERM to it that would end them."""

    def end() -> None:
        for process in multiprocessing.active_children():
            if process.daemon:
                process.kill()

    atexit.register(end)


@contextmanager
def killed_workers_named() -> Iterator[None]:
    """Say in one sentence that a reading process was killed; PyTorch notices it anywhere.

    Raises:
        LikenessError: A process of a DataLoader was killed within the block.
    """
    try:
        try:
            yield
        except (ConnectionError, EOFError):
            # The connection to a killed process breaks just before PyTorch hears of its end.
            time.sleep(1)  # where PyTorch then raises its own error
            raise
    except RuntimeError as error:
        if not re.match(r"DataLoader worker \(pid", str(error)):
            raise
        raise LikenessError(KILLED.format("compute.workers")) from error


_ESTIMATE_BATCH, _ESTIMATE_VIEWS, _EACH_CLASS = 64, 4_096, 4


@torch.no_grad()
def estimate(
    run: Run,
    views: Views,
    compute: Compute,
    *,
    num_views: int,
    at_means: bool,
    seed: int,
    network: bool = True,
    loss: bool = True,
) -> None:
    """Let a backbone or a loss learn its constants from the training data before the first step.

    It learns from num_views views of every item, but of at most 4,096 views. These are
    three times as many as the longest vector that a backbone here whitens has numbers (1,280 of
    MixtureStatistics). More would change the directions by little, and on large data they would
    take longer than the first epoch. Views come in batches of 64, and each round over the items
    leaves out those that do not fill one. Where not every item is seen, 4 items of each of 1,024
    classes are drawn, because a covariance within classes needs several items of a class.

    A backbone gets batches (features, lengths, labels); a loss gets the embeddings (N, D) that the
    network then gives. With at_means the loss's class vectors are turned to the mean directions of
    these embeddings. Every process of a run does all of it.

    Args:
        run: Its network and loss learn.
        views: Of the training items.
        compute: How they are read.
        num_views: Of every item.
        at_means: Whether the class vectors start at mean directions.
        seed: Of the draws.
        network: False where the network's constants came with its weights.
        loss: False where the loss's did.
    """
    of_backbone = getattr(run.embedder.backbone, "estimate", None) if network else None
    of_loss = run.loss.estimate if loss and isinstance(run.loss, Estimated) else None
    at_means = loss and at_means
    if of_backbone is None and of_loss is None and not at_means:
        return
    labels = views.labels
    sampling, num_batches = _batches_of_estimate(labels, num_views)

    def batches(sampling: Sampling) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        order = draws(labels, sampling, seed=seed, start=0, stop=num_batches)
        parts = views, order, compute, run.device
        what = "learning constants of the data"
        unread: list[Bad] = []
        num_read = 0
        for batch, bad in track(loader_of(*parts, seed=seed), what, total=num_batches):
            unread = bad or unread
            if batch is not None:
                num_read += len(batch.labels)
                features, lengths = run.embedder.frontend(batch.inputs, batch.lengths)
                yield features, None if batch.lengths is None else lengths, batch.labels
        if unread and not num_read:
            raise LikenessError(f"no item could be read; {unread[0].id}: {unread[0].reason}")

    run.embedder.eval()
    if of_backbone is not None:
        of_backbone(batches(sampling))
    if of_loss is not None or at_means:
        embeddings, classes = _embedded(run, batches(Sampling(sampling.batch_size)), seed)
        if of_loss is not None:
            of_loss(embeddings)
        if at_means:
            start = 0 if run.layout is None else run.layout.start
            turn_to_means(cast(Tensor, run.loss.proxies), embeddings, classes - start)
    if run.encoder is not None:
        run.encoder.load_state_dict(run.embedder.state_dict())


def _embedded(
    run: Run, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]], seed: int
) -> tuple[Tensor, Tensor]:
    """The embeddings of batches, and their labels.

    Batch norm has no statistics yet; as in the first steps, embeddings come from batch statistics.
    """
    run.embedder.train()
    state = {name: value.clone() for name, value in run.embedder.state_dict().items()}
    with torch.random.fork_rng(devices=[run.device.index] if run.device.type == "cuda" else []):
        torch.manual_seed(seed)  # dropout is the same in every process
        made = [
            (run.embedder.backbone(features, lengths).float(), classes)
            for features, lengths, classes in batches
        ]
    run.embedder.load_state_dict(state)
    embeddings, labels = (torch.cat(parts) for parts in zip(*made, strict=True))
    return embeddings, labels


def _batches_of_estimate(labels: Index, num_views: int) -> tuple[Sampling, int]:
    """How batches are drawn that constants are learnt from, and how many."""
    size = min(_ESTIMATE_BATCH, len(labels))
    of_every_item = num_views * (len(labels) // size)
    num_batches = min(of_every_item, _ESTIMATE_VIEWS // size)
    in_classes = (
        num_batches < of_every_item
        and size % _EACH_CLASS == 0
        and np.unique(labels).size * _EACH_CLASS >= size
    )
    return Sampling(size, items_per_class=_EACH_CLASS if in_classes else 0), num_batches
