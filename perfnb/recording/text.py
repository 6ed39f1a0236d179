"""Provide one text type for tables under every pandas version. Missing text is ``NaN`` and stays missing.

The type is pandas 3's ``str``. In pandas 2, that name means Python objects, where ``None``, ``NaN`` and ``NA`` can be
mixed, and a conversion turns each of them into a word. The same type exists in pandas 2 under another name, and needs
pyarrow. Functions that inspect the text of events process each distinct text once, and not each event.
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
    """Convert all categories that are objects to text."""
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
    """Apply `tell` to each row's text. Rows without text get `missing`."""
    texts = as_categories(texts)
    labels = texts.cat.categories.tolist()
    answers: npt.NDArray[Any] = np.array([*map(tell, labels), missing])
    return answers[texts.cat.codes.to_numpy()]


def found(texts: pd.Series, find: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Return whether a pattern's `search` or `match` finds a match in each row's text.

    The result is ``False`` for rows without text. `Series.str` accepts different patterns, and treats missing text
    differently, in each pandas version.
    """
    return of_labels(texts, lambda text: find(text) is not None)


def is_one_of(texts: pd.Series, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Return whether each row's text is one of `wanted`."""
    return of_labels(texts, frozenset(wanted).__contains__)
