"""Keeper: what happens around the steps of a run. It logs, evaluates, saves and stops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from likeness.eval.errors import LikenessError
from likeness.eval.formats.runs import BEST, LAST
from likeness.eval.intervals.per_item import PerItem
from likeness.eval.progress import report
from likeness.eval.types import Scores
from likeness.toolkit.console import say
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.losses.contract import similarity_trained_by
from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.parallel import distributed
from likeness.toolkit.signals import Interrupted, interruptible
from likeness.toolkit.training import measure
from likeness.toolkit.training._finite import TerminateOnNaN
from likeness.toolkit.training.log import BadItems, Clock, Log
from likeness.toolkit.training.plan import Plan
from likeness.toolkit.training.recipe import ItemMeasure, Parallel, Verification
from likeness.toolkit.training.run import Run, mark_evaluated, save_run


class Keeper:
    """Keeps a run while it trains: its log, its metrics, its checkpoints, and when it ends.

    The loop asks it for batches and tells it when a step is done. Every process has one, and all
    of them call it alike; the main process alone writes.

    Train inside `running`: Ctrl-C then only sets a flag, so that the step ends and is saved.
    """

    def __init__(
        self,
        run: Run,
        planned: Plan,
        out: Path,
        *,
        loggers: Sequence[str] = (),
        embedded: measure.Embedded | None = None,
    ):
        self.run, self.plan, self.recipe, self.out = run, planned, planned.recipe, out
        self.loggers, self.embedded = loggers, embedded
        self.bad = BadItems(self.recipe.max_bad_share)
        self.left_out = 0  # steps of which too few items could be read
        self.clock = Clock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Train inside: the log is open, and Ctrl-C only sets a flag."""
        run, out = self.run, self.out if distributed.is_main() else None
        with interruptible() as self.interrupted:
            report("training", run.step, self.recipe.schedule.steps, unit="steps")
            try:
                with (
                    Log(out, run.step, self.loggers, self.plan.description) as self.log,
                    TerminateOnNaN(
                        run, self.plan.draws, self.plan.items, self.log
                    ) as self.nan_check,
                ):
                    if run.init and not run.step:
                        self.log.write(0, init=run.init)
                    yield
            finally:
                report("training", run.step, run.step, unit="steps")

    @property
    def ended(self) -> bool:
        """Whether the watched metric has not been better for so long that training ends."""
        stop_after = self.recipe.schedule.stop_after
        return bool(stop_after and self.run.plateau.since_best >= stop_after)

    def batches(self, loader: Iterable[tuple[Batch | None, list[Bad]]]) -> Iterator[Batch | None]:
        """The loader's batches. What could not be read is counted, and named once.

        Raises:
            LikenessError: More of the items than the recipe allows cannot be read.
        """
        drawn = self.recipe.sampling.batch_size // distributed.world()
        for batch, unreadable in self.clock.waiting(loader):
            self.bad.count(unreadable, drawn)
            yield batch

    def repeat_failed_evaluation(self) -> bool:
        """Evaluate where the evaluation of the last checkpoint had failed.

        Returns:
            Whether training ends with it.
        """
        if self.run.owes_evaluation:
            self._evaluate()
            self.run.owes_evaluation = False
            mark_evaluated(self.out, self.run)
        return self.ended

    def log_evaluate_save(self) -> bool:
        """Log, evaluate and save what is due after a step.

        Returns:
            Whether that step was the last.

        Raises:
            Interrupted: After Ctrl-C, when all is saved.
            LikenessError: An evaluation failed; the run is saved.
            Diverged: Something is NaN or infinite; the last checkpoint is kept.
        """
        run, schedule = self.run, self.recipe.schedule
        last, saves = run.step == schedule.steps, run.step % schedule.save_every == 0
        if run.average is not None and (last or saves):
            _same_statistics(run, self.recipe.parallel)
            run.average.take(run.embedder, run.loss)
        stop = distributed.any_rank(self.interrupted())
        self.clock.steps += 1
        # The losses of a GPU are read every so many steps; the log asks no more often.
        if last or run.step % max(self.nan_check.every, schedule.steps // 200) == 0:
            spent = self.clock.read(self.recipe.sampling.batch_size)
            self.log.write(run.step, loss=self.nan_check.latest_loss(), lr=run.rate, **spent)
        loss, rate = self.nan_check.value, run.rate
        if last:  # has a line in any case
            _note(f"step {run.step}/{run.step}  loss {loss:.4f}  lr {rate:.2e}")
        known = "" if math.isnan(loss) else f"loss {loss:.4f}, "  # of a GPU it comes later
        note = f"{known}lr {rate:.2e}"
        report("training", run.step, schedule.steps, unit="steps", note=note)
        due = last or (schedule.eval_every and run.step % schedule.eval_every == 0)
        if self.recipe.measure is not None and due:
            self.nan_check.check_all()
            self._evaluate_or_save()
            last = last or self.ended
        if last or stop or saves:
            self.nan_check.check_all()  # nothing that is not finite is saved
            self._save()
        if stop and not last:
            distributed.wait()
            raise Interrupted(
                f"stopped after step {run.step} of {schedule.steps}; {self.out} is whole, and the "
                "same command goes on"
            )
        return last

    def report(self) -> None:
        """Say what was left out, after the last step.

        Raises:
            Interrupted: Ctrl-C came while the last step ended.
        """
        self.bad.report()
        if self.left_out:
            _note(f"{self.left_out} steps were left out, as too few of their items could be read")
        if distributed.any_rank(self.interrupted()):
            raise Interrupted(f"stopped after the last step; {self.out} is whole")

    def _evaluate_or_save(self) -> None:
        """Evaluate. What cannot be measured costs no training: the run is saved then."""
        try:
            self._evaluate()
        except Diverged:  # then the checkpoint before is the one to keep
            raise
        except ValueError as error:
            self.run.owes_evaluation = True
            self._save()
            raise LikenessError(
                f"the evaluation after step {self.run.step} of {self.recipe.schedule.steps} "
                f"failed: {error}. The run in {self.out} is whole: repair this, then the same "
                "command evaluates and goes on"
            ) from error

    def _evaluate(self) -> None:
        """Measure the model as it is, write it down, and keep the model if it is the best.

        The metrics are of trials, or of what the validation or the measure finds of each item.
        """
        run, planned, recipe, schedule = self.run, self.plan, self.recipe, self.recipe.schedule
        _same_statistics(run, recipe.parallel)
        embedder, loss = run.model
        similarity, workers = similarity_of(recipe.similarity, loss), recipe.compute.workers
        embedded: measure.Embedded | None = None if self.embedded is None else {}
        model = measure.Model(
            embedder, loss, planned.classes, recipe.read, similarity, workers, embedded
        )
        only = ""
        if planned.trials is not None:
            assert isinstance(recipe.measure, Verification)
            measured: PerItem | Scores = model.score(planned.trials, recipe.measure.flip)
        else:
            settings, *others = measure.settings_of(recipe.measure)
            measured = measure.measure_items(model, planned.data, settings)
            only = schedule.watch if others else ""  # of a validation
        metrics = measure.metrics_of(recipe.metrics, measured, only=only)
        self.log.write(run.step, **metrics)
        shown = ", ".join(f"{name} {number:.4f}" for name, number in metrics.items())
        _note(f"step {run.step}: {shown}")
        is_best = bool(schedule.watch) and run.plateau.update(
            metrics[schedule.watch], schedule.higher_is_better, schedule.halve_after
        )
        if is_best:
            self._save_model(BEST, metrics)
        if self.embedded is not None and embedded and (is_best or not schedule.watch):
            self.embedded.clear()
            self.embedded.update(embedded)

    def _save(self) -> None:
        """Save the last model and the state to go on from."""
        _same_statistics(self.run, self.recipe.parallel)
        self._save_model(LAST, {})
        save_run(self.out, self.run, self.plan.classes, self.plan.fingerprint)

    def _save_model(self, name: str, metrics: dict[str, float]) -> None:
        if distributed.is_main():
            embedder, loss = self.run.model
            checkpoint.save_model(
                self.out / name,
                embedder,
                self.recipe,
                similarity=similarity_of(self.recipe.similarity, loss),
                step=self.run.step,
                metrics=metrics,
                loss=loss if isinstance(self.recipe.measure, ItemMeasure) else None,
                classes=self.plan.classes,
                init=self.run.init,
            )


def similarity_of(stated: str, loss: nn.Module) -> str:
    """The similarity that a recipe states, else the one that the loss trains, else cosine."""
    return stated or similarity_trained_by(loss)


def _note(text: str) -> None:
    """Print a line, in the main process."""
    if distributed.is_main():
        say(text, error=True)


def _same_statistics(run: Run, parallel: Parallel) -> None:
    """Without synced batch norm every process has running statistics of its own: what is measured
    and saved is the first one's.
    """
    if not parallel.sync_batch_norm:
        average = None if run.average is None else run.average.embedder
        for module in (run.embedder, run.encoder, average):
            for buffer in () if module is None else module.buffers():
                distributed.broadcast(buffer)
