"""Which classes train, validate and test: the splits of the papers, exact to the class.

The class-disjoint splits of the retrieval papers have names here; there is also the stratified
split of closed sets. With the C classes of a data set in its own order (class numbers, not names),
of which the first T are the authors' training half:

- standard trains on the first T, validates on none and tests on the rest. Source: Song et al.,
  "Lifted structured feature embedding" (CVPR 2016), and everyone since.
- vmf validates on 15 % of T, drawn by numpy's RandomState(1234) (15 of 100, 15 of 98, 1,698 of
  11,318), trains on the others of T and tests on the rest. Source: vMF paper, App. D.2;
  google-research/vmf_embeddings,
  third_party/dml_cross_entropy/download_and_process_{cub200,cars196,sop}.py.
- revisiting trains on the first 80 % of the first half, validates on its last 20 % and tests on the
  second half. Source: Confusezius/Revisiting_Deep_Metric_Learning_PyTorch, --use_tv_split.
- benchmarker trains on 3/4 of the first half, validates on block `fold` of 4 and tests on the
  second half. Source: KevinMusgrave/powerful-benchmarker, split_managers/index_split_manager.py
  (KFold, unshuffled): the later releases.
- mlrc trains on 3/4 of the first half, validates on 1/4 and tests on the second half. Fold p trains
  from class int(p/4 T) on, wraps around, and validates on what follows. Source: the same
  repository, mlrc_split_manager.py: "A Metric Learning Reality Check" (ECCV 2020).

"First half" is floor(C/2) classes: in Stanford Online Products 11,317, one fewer than the authors'
T, so that class 11,318 moves to the test; elsewhere T. Revisiting takes SOP's own two lists: T.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.types import check_choice

Index = NDArray[np.int64]
Split = Literal["train", "validation", "test", "all"]
Protocol = Literal["standard", "vmf", "revisiting", "benchmarker", "mlrc"]
_VMF_SEED = 1234
_FOLDS = 4


class Division(NamedTuple):
    """Positions of classes (or items), ascending; each is in one of the three."""

    train: Index
    validation: Index
    test: Index


def divide_classes(
    num_classes: int, num_train: int, *, protocol: Protocol = "standard", fold: int = 0
) -> Division:
    """Divide the classes 0 ... num_classes - 1 as a protocol does; the top of the file lists them.

    Args:
        num_classes: C.
        num_train: T.
        protocol: The name of the protocol.
        fold: 0 to 3, for benchmarker and mlrc.

    Raises:
        LikenessError: The protocol is unknown, the fold is out of range or has no meaning, or there
            are too few classes to divide.

    Example:
        >>> divide_classes(200, 100, protocol="vmf").validation.tolist()
        [27, 33, 35, 39, 40, 42, 56, 59, 61, 63, 68, 81, 85, 94, 98]
    """
    check_choice("protocol", protocol, get_args(Protocol))
    folded = protocol in ("benchmarker", "mlrc")
    first = num_classes // 2 if folded else num_train
    if not 0 <= fold < (_FOLDS if folded else 1) or not 4 <= first < num_classes:
        raise LikenessError(
            f"fold is {fold} with protocol {protocol!r}, and {first} of {num_classes} classes train"
            f"; {f'0 to {_FOLDS - 1} are' if folded else 'only 0 is'} allowed, with at least 4 "
            "classes to train and 1 to test"
        )
    every, half = np.arange(num_classes), np.arange(first)
    if protocol == "vmf":
        held_out = np.random.RandomState(_VMF_SEED).choice(
            half, size=round(0.15 * first), replace=False
        )
    elif protocol == "revisiting":
        held_out = half[int(first * 0.8) :]
    elif protocol == "benchmarker":
        held_out = np.array_split(half, _FOLDS)[fold]
    elif protocol == "mlrc":
        # This is the split manager's own rounding: what int() cuts off goes to the training part.
        num_validation = int(num_classes * 0.125)
        start = int(fold / _FOLDS * first) + first - num_validation
        held_out = np.arange(start, start + num_validation) % first
    else:
        held_out = half[:0]
    return Division(np.setdiff1d(half, held_out), np.sort(held_out), every[first:])


def hold_out(
    labels: Sequence[str] | NDArray[np.int64], share: float, *, seed: int = _VMF_SEED
) -> tuple[Index, Index]:
    """Hold out a share of each class; return the positions that train and that validate, ascending.

    It is scikit-learn's train_test_split(test_size, random_state=seed, stratify). With seed 1234
    and share 0.15 on the training images of MNIST, FashionMNIST and CIFAR it is the split of the
    vMF paper (App. D.2; vmf_embeddings, datasets/mnist_dataset.py).

    Args:
        labels: Class numbers, as there, or names that sort as those do: which items are drawn
            depends on the classes' order.
        share: The share that is held out; 0 holds out none.
        seed: Decides what is drawn.

    Raises:
        LikenessError: The share is outside 0 to 1, or a class has too few items.

    Example:
        >>> train, validation = hold_out(["a", "a", "b", "b"], 0.5)
        >>> len(train), len(validation)
        (2, 2)
    """
    positions = np.arange(len(labels))
    if not 0.0 <= share < 1.0:
        raise LikenessError(
            f"validation share is {share}; a share from 0 to below 1 is needed, 0.15 in the vMF "
            "paper"
        )
    if share == 0.0:
        return positions, positions[:0]
    from sklearn.model_selection import train_test_split

    train, validation = train_test_split(
        positions, test_size=share, random_state=seed, stratify=np.asarray(labels)
    )
    return np.sort(train), np.sort(validation)
