"""The verification sets that face networks are watched on while they train, as trials of one list.

They are LFW, AgeDB-30, CALFW, CPLFW and CFP-FP.
"""

from pathlib import Path

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.types import Trials, name_first
from likeness.modalities.face import _bins, _pairs

Set = tuple[list[Item], Trials]
PAIRS = {  # of the published sets
    "lfw": 6_000,
    "agedb_30": 6_000,
    "calfw": 6_000,
    "cplfw": 6_000,
    "cfp_ff": 7_000,
    "cfp_fp": 7_000,
}


def trials(
    data: str | Path, *, sets: tuple[str, ...] = ("lfw", "agedb_30", "calfw", "cplfw")
) -> Set:
    """List the images and trials of several sets, one after the other.

    The set NAME is DATA/NAME.bin (bins.items), or the folder DATA/NAME with a list and the
    images. The lists are taken as the data sets come, and pairs.read_folder tells them apart: LFW's
    pairs.txt, CALFW's and CPLFW's pairs_NAME.txt of two lines a pair, CFP's folder Protocol
    (frontal-frontal where NAME ends in ff, otherwise frontal-profile), AgeDB's .mat. Images lie
    where the list states them: DATA/lfw/Ann/Ann_0001.jpg, DATA/calfw/x.jpg,
    DATA/cfp_fp/Data/Images/001/frontal/01.jpg, DATA/agedb_30/x.jpg.

    Every set must be there, so that a number always means the same pairs.

    Args:
        data: The folder above the sets.
        sets: The names of the sets. The default has the combined 12,000 same and 12,000 different
            pairs of the SimPLE paper (Sec. 5.1).

    Returns:
        The items, with ids NAME/... and without labels, and the trials.

    Raises:
        LikenessError: Sets are missing; the message names them. There is no set, a set is named
            twice, or a reader refuses its file.
    """
    data = Path(data)
    missing = [
        name
        for name in sets
        if not (data / f"{name}.bin").is_file() and _pairs.find_list(data / name) is None
    ]
    if missing or not sets or len(set(sets)) < len(sets):
        raise LikenessError(
            f"{data}: {len(missing)} of {len(sets)} verification sets are not there "
            f"({name_first(missing)}), or named twice; put NAME.bin or the folder NAME there, or "
            "name those that you have by trials.sets"
        )
    return joined([_read(data, name) for name in sets])


def joined(sets: list[Set]) -> Set:
    """Join the items and trials of several sets to one; ids must differ between the sets.

    Args:
        sets: The items and labelled trials of each set.

    Returns:
        All items, and all trials.
    """
    items = [item for part, _ in sets for item in part]
    enrol, probe, target = [], [], []
    row = {item.id: number for number, item in enumerate(items)}
    for _, listed in sets:
        assert listed.target is not None
        enrol.append(np.array([row[id] for id in listed.enrol_ids], dtype=np.int32)[listed.enrol])
        probe.append(np.array([row[id] for id in listed.probe_ids], dtype=np.int32)[listed.probe])
        target.append(listed.target)
    ids = tuple(item.id for item in items)
    return items, Trials(
        ids, ids, np.concatenate(enrol), np.concatenate(probe), np.concatenate(target)
    )


def _read(data: Path, name: str) -> Set:
    """List the images and trials of one set."""
    if (data / f"{name}.bin").is_file():
        return _bins.items(data / f"{name}.bin")
    listed = _pairs.read_folder(data / name)
    items = [
        item._replace(id=f"{name}/{item.id}", label=None)
        for item in _pairs.find_images(listed, data / name)
    ]
    enrol_ids = tuple(f"{name}/{id}" for id in listed.enrol_ids)
    probe_ids = tuple(f"{name}/{id}" for id in listed.probe_ids)
    return items, Trials(enrol_ids, probe_ids, listed.enrol, listed.probe, listed.target)


def odd_sizes(listed: Trials) -> list[str]:
    """A sentence for each set whose number of pairs is not that of the published one."""
    names = np.array([id.partition("/")[0] for id in listed.enrol_ids])[listed.enrol]
    counts = {
        str(name): int(count)
        for name, count in zip(*np.unique(names, return_counts=True), strict=True)
    }
    return [
        f"{name} has {count:,} pairs here, and {PAIRS[name]:,} as it was published"
        for name, count in counts.items()
        if count != PAIRS.get(name, count)
    ]
