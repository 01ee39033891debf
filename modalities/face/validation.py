"""The verification sets that face networks are watched on while they train: LFW, AgeDB-30, CALFW,
CPLFW, CFP-FP, as trials of one list.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eval.types import Trials, name_first
from modalities.face import pairs, pickled
from toolkit.data.batch import Item

Set = tuple[list[Item], Trials]


def trials(
    data: str | Path, *, sets: tuple[str, ...] = ("lfw", "agedb_30", "calfw", "cplfw")
) -> Set:
    """The images and trials of `sets`, one after the other: NAME is DATA/NAME.bin (pickled.items)
    or the folder DATA/NAME with a list and the images.

    Lists as the data sets come, told apart by pairs.read_folder: LFW's pairs.txt, CALFW's and
    CPLFW's pairs_NAME.txt of two lines a pair, CFP's folder Protocol (frontal-frontal where NAME
    ends in ff, else frontal-profile), AgeDB's .mat. Images lie where the list says:
    DATA/lfw/Ann/Ann_0001.jpg, DATA/calfw/x.jpg, DATA/cfp_fp/Data/Images/001/frontal/01.jpg,
    DATA/agedb_30/x.jpg.
    Default: the combined 12,000 same and 12,000 different pairs of the SimPLE paper (Sec. 5.1). Ids
    are NAME/..., and images have no labels.
    Every set must be there, so that a number always means the same pairs: FileNotFoundError names
    those that are not. ValueError: no set, one twice, and what the readers refuse.
    """
    data = Path(data)
    if not sets or len(set(sets)) < len(sets):
        raise ValueError(f"validation: sets is {sets!r}; at least one is needed, and each once")
    missing = [
        one
        for one in sets
        if not (data / f"{one}.bin").is_file() and pairs.find_list(data / one) is None
    ]
    if missing:
        raise FileNotFoundError(
            f"{data}: {len(missing)} of {len(sets)} verification sets are not there "
            f"({name_first(missing)}); put NAME.bin or the folder NAME with its list of"
            " pairs and its images there, or name those that you have: "
            f"trials.sets={','.join(one for one in sets if one not in missing) or 'NAME'}"
        )
    return joined([_read(data, one) for one in sets])


def joined(sets: list[Set]) -> Set:
    """Items and trials of several sets as one; ids must differ between them."""
    items = [item for part, _ in sets for item in part]
    enrol, probe, target = [], [], []
    row = {item.id: number for number, item in enumerate(items)}
    for _, listed in sets:
        assert listed.target is not None
        enrol.append(np.array([row[one] for one in listed.enrol_ids], dtype=np.int32)[listed.enrol])
        probe.append(np.array([row[one] for one in listed.probe_ids], dtype=np.int32)[listed.probe])
        target.append(listed.target)
    ids = tuple(item.id for item in items)
    return items, Trials(
        ids, ids, np.concatenate(enrol), np.concatenate(probe), np.concatenate(target)
    )


def _read(data: Path, name: str) -> Set:
    if (data / f"{name}.bin").is_file():
        return pickled.items(data / f"{name}.bin")
    listed = pairs.read_folder(data / name).trials
    items = [
        one._replace(id=f"{name}/{one.id}", label=None)
        for one in pairs.find_images(listed, data / name)
    ]
    ids = (
        tuple(f"{name}/{one}" for one in listed.enrol_ids),
        tuple(f"{name}/{one}" for one in listed.probe_ids),
    )
    return items, Trials(*ids, listed.enrol, listed.probe, listed.target)
