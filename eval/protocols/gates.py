"""Conditions on results under which a command ends with an error, such as "mean_score < .7"."""

import operator
import re
from collections.abc import Sequence

from likeness.eval.errors import LikenessError, shorten
from likeness.eval.option import if_option
from likeness.eval.protocols.side_by_side import Compared

_OPERATORS = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}
_CONDITION = re.compile(
    r"\s*(difference\s+)?([\w@.()-]+?)(?:\s+(low|high))?\s*(<=|>=|<|>)\s*"
    r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)


def parse_condition(text: str) -> tuple[str, ...]:
    """Reads `[difference] METRIC [low|high] SIGN NUMBER` into its five parts; one may be "".

    Raises:
        LikenessError: It is no such condition.

    >>> parse_condition("difference eer high>=.05")
    ('difference ', 'eer', 'high', '>=', '.05')
    """
    if found := _CONDITION.fullmatch(text):
        return found.groups("")
    form = "[difference] METRIC [low|high] SIGN NUMBER"
    raise LikenessError(f"condition {shorten(text)!r}: write {form}, as in 'mean_score < 0.7'")


def met_conditions(compared: Compared, conditions: Sequence[str]) -> list[str]:
    """Which conditions results meet, a sentence for each system.

    Args:
        compared: The results of all systems and their differences.
        conditions: As of `parse_condition`. Values are those of the JSON document: rates are
            fractions.

    Raises:
        LikenessError: A metric was not measured, or has no such interval. Systems are on other
            trials than the first, so that they cannot be judged alike.
    """
    pairs, sentences = compared.paired, []
    if conditions and pairs and pairs.unpaired:
        remedy = "score the same ones"
        remedy += if_option(", or pair clones of the same prompts by --pair-by enrol")
        if (side := compared.results[0].conventions.get("pair_by")) in ("enrol", "probe"):
            remedy = f"leave out of all files the {side} ids that occur less often in one of them"
        problem = f"{', '.join(pairs.unpaired)}: not on the trials of {pairs.reference}"
        raise LikenessError(f"{problem}, so no condition compares them; {remedy}")
    of_systems = [(of.system, of.metric, of) for of in compared.results]
    differences = pairs.differences.items() if pairs else ()
    between = [(f"{name}, difference", metric, of) for (name, metric), of in differences]
    for text in conditions:
        difference, metric, end, sign, limit = parse_condition(text)
        known = between if difference else of_systems
        rows = [(system, of) for system, name, of in known if name == metric]
        if not rows:
            there = ", ".join(dict.fromkeys(name for _, name, _ in known)) or "no difference"
            raise LikenessError(f"condition {text!r}: it was not measured; there is {there}")
        if lacking := dict.fromkeys(name for name, *_ in known if name not in dict(rows)):
            names = ", ".join(lacking)
            raise LikenessError(f"condition {text!r}: {metric} was not measured for {names}")
        for system, of in rows:
            if end and of.interval is None:
                raise LikenessError(f"condition {text!r}: {system} has no interval of {metric}")
            value = of.interval[end == "high"] if end and of.interval else of.value
            if _OPERATORS[sign](value, float(limit)):
                what = f"{metric} {end}".rstrip()
                sentences.append(f"{system}: {what} is {value:.6g}, which meets {text!r}")
    return sentences
