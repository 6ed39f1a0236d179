"""Provide a single text type for tables in all pandas versions. Missing text is ``NaN`` and remains missing.

The type is ``str`` in pandas 3. In pandas 2, ``str`` produces Python objects, which may be a mixture of ``None``,
``NaN`` and ``NA``, and a conversion to text turns each of these into a word. The new type also exists in pandas 2, but
it has a different name and requires pyarrow. Functions that inspect the text of events process each distinct text only
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def _text_type() -> Any:
    if int(pd.__version__.partition(".")[0]) >= 3:
        return "str"
    try:
        return pd.StringDtype(na_value=np.nan)
    except TypeError:  # before pandas 2.3
        return pd.StringDtype("pyarrow_numpy")


#: The type of a text column or index, for ``dtype=`` and ``astype()``.
TEXT: Any = _text_type()


def with_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the categories of all columns from objects to text."""
    typed: dict[Any, Any] = {}
    for name in frame.select_dtypes("category"):
        kind = frame[name].dtype
        if isinstance(kind, pd.CategoricalDtype) and kind.categories.dtype == object:
            typed[name] = pd.CategoricalDtype(kind.categories.astype(TEXT), kind.ordered)
    return frame.astype(typed) if typed else frame


def as_categories(texts: pd.Series) -> pd.Series:
    """Convert a text column to categories."""
    return texts if isinstance(texts.dtype, pd.CategoricalDtype) else texts.astype("category")


def of_labels(texts: pd.Series, tell: Callable[[str], Any], missing: Any = False) -> npt.NDArray[Any]:
    """Apply `tell` to each row's text. The result for rows without text is `missing`."""
    texts = as_categories(texts)
    labels = texts.cat.categories.tolist()
    answers: npt.NDArray[Any] = np.array([*map(tell, labels), missing])
    return answers[texts.cat.codes.to_numpy()]


def found(texts: pd.Series, find: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Check whether a pattern's `search` or `match` method finds a match in each row's text.

    The result is ``False`` for rows without text. `Series.str` is not used because the patterns that it accepts and the
    way it treats missing text depend on the pandas version.
    """
    return of_labels(texts, lambda text: find(text) is not None)


def is_one_of(texts: pd.Series, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Check whether each row's text is one of `wanted`."""
    return of_labels(texts, frozenset(wanted).__contains__)
