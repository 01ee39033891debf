"""What commands say of work on long lists: the memory that is allowed, and how far it is."""

from __future__ import annotations

import numpy as np
import pytest

from eval.formats.embeddings import write as write_embeddings
from eval.formats.trials import write_trials
from eval.progress import Report, reported_to
from eval.protocols.verification import VerificationSettings
from eval.types import Embeddings, Trials
from likeness.commands.memory_of_lists import refuse_beyond
from likeness.commands.score import score_files
from likeness.score_files import evaluate_files


@pytest.mark.parametrize("suffix", [".txt", ".npz"])
def test_work_beyond_the_memory_is_refused_with_what_it_needs(tmp_path, suffix):
    path = tmp_path / f"list{suffix}"
    write_trials(path, Trials(("a",), ("b",), *np.zeros((2, 50_000), dtype=np.int32)))
    # 150 MB for the program, twice 20 MB of embeddings, 2,000 bytes for each of 50,000 trials. In
    # all these are 277 times 2^20 bytes.
    work = {"work": "scoring", "lists": [path], "per_trial": 2_000, "matrices": 20_000_000}
    refuse_beyond("277M", **work)
    refuse_beyond(None, **work)
    with pytest.raises(ValueError, match=r"50,000 trials .*277M.*allows 276M"):
        refuse_beyond("276M", **work)


def test_every_step_of_scoring_and_evaluating_is_reported_to_its_end(tmp_path):
    rng = np.random.default_rng(0)
    ids = tuple(f"s{k % 6}/{k}" for k in range(24))
    write_embeddings(tmp_path / "e.npz", Embeddings(ids, rng.standard_normal((24, 3))))
    i, j = np.triu_indices(24, 1)
    target = np.array([ids[a][:2] == ids[b][:2] for a, b in zip(i, j, strict=True)])
    write_trials(tmp_path / "t.txt", Trials(ids, ids, i, j, target))
    last: dict[str, Report] = {}
    with reported_to(lambda report: last.update({report.what: report})):
        score_files(tmp_path / "t.txt", tmp_path / "e.npz", tmp_path / "s.txt")
        evaluate_files([tmp_path / "s.txt"], VerificationSettings(num_resamples=20))
    steps = {"reading t.txt", "reading embeddings", "scoring", "writing", "reading s.txt"}
    assert last.keys() == steps | {"measuring", "resampling"}
    assert all(report.is_end for report in last.values())
