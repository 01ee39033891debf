"""Tables of pandas, for those who have it."""

from __future__ import annotations

from typing import Any

from eval.errors import LikenessError


def data_frame(rows: Any) -> Any:
    """Give a pandas DataFrame.

    Args:
        rows: An array (N, D), or N mappings from the name of a column to its value.

    Returns:
        The DataFrame.

    Raises:
        LikenessError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise LikenessError(
            "to_frame() needs pandas, which is not installed: pip install pandas"
        ) from None
    return pandas.DataFrame(rows)
