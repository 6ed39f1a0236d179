"""What an event's text tells: asked of each different text once, not of each event."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


def as_categories(texts: pd.Series) -> pd.Series:
    """A column of text, categorical."""
    return texts if isinstance(texts.dtype, pd.CategoricalDtype) else texts.astype("category")


def of_labels(texts: pd.Series, tell: Callable[[str], Any], missing: Any = False) -> npt.NDArray[Any]:
    """What `tell` says of the text of each row; `missing` where there is none."""
    texts = as_categories(texts)
    labels = texts.cat.categories.tolist()
    told = np.array([*map(tell, labels), missing])
    result: npt.NDArray[Any] = told[texts.cat.codes.to_numpy()]
    return result


def whole_sums(codes: npt.NDArray[Any], values: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The sum of the whole numbers of each code from 0 to `count`, exact also where a float would not be."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, codes, values)
    return sums


def found(texts: pd.Series, find: Callable[[str], object]) -> npt.NDArray[np.bool_]:
    """Whether a pattern's `search` or `match` finds itself in the text of each row; not where there is none.

    Series.str takes other patterns, and says other things of a missing text, under each pandas.
    """
    return of_labels(texts, lambda text: find(text) is not None)


def is_one_of(texts: pd.Series, wanted: Collection[str]) -> npt.NDArray[np.bool_]:
    """Whether the text of each row is one of some."""
    return of_labels(texts, frozenset(wanted).__contains__)
