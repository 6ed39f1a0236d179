"""Text in frames is one type with one kind of missing, and a report the same words, whichever pandas there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.recording.frame_files import FrameFile, SavedColumn, write_frame
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT, with_text
from tests.test_architecture import PACKAGE, sources

# `str` as a type is Python objects in pandas 2, where a missing text becomes a word.
OWN_WORD = re.compile(r"""astype\(["']?str["']?\)|dtype=["']?str["']?\b|: ["'](?:str|string)["']""")


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_missing_text_stays_missing(missing: Any) -> None:
    text = pd.Series(["a", missing], dtype=object).astype(TEXT)

    assert text.isna().tolist() == [False, True]
    assert isinstance(text[1], float)
    assert (text == "a").tolist() == [True, False]
    assert text.groupby(text).size().to_dict() == {"a": 1}


@pytest.mark.parametrize("kind", ["string", object, TEXT])
def test_a_text_that_was_saved_is_text_again(tmp_path: Path, kind: Any) -> None:
    index = pd.Index(["x", "y"], dtype=kind, name="name")
    frame = pd.DataFrame({"op": pd.Series(["a", None], dtype=kind, index=index)}, index=index)
    write_frame(frame, tmp_path / "ops.parquet")

    loaded = FrameFile(
        tmp_path / "ops.parquet", {"op": SavedColumn(TEXT, missing=True), "name": SavedColumn(TEXT, index=True)}
    ).frame()

    text = pd.Index(["x", "y"], dtype=TEXT, name="name")
    pd.testing.assert_frame_equal(loaded, pd.DataFrame({"op": pd.Series(["a", None], dtype=TEXT, index=text)}))


def test_a_conformed_frame_has_no_text_of_objects() -> None:
    made = pd.DataFrame({"module": np.array(["Linear", None], dtype=object)}, index=pd.Index(["a", "b"], dtype=object))

    layers = conform(made, "layers")
    events = conform(pd.DataFrame({"name": pd.Categorical(np.array(["a"], dtype=object))}).assign(**EVENT), "events")

    assert layers["module"].isna().tolist() == [False, True]
    assert object not in [layers["module"].dtype, layers.index.dtype, events["name"].cat.categories.dtype]


EVENT = {"start_ns": 0, "duration_ns": 0, "thread": 0, "rank": 0}


def test_no_module_names_the_type_of_text_itself() -> None:
    own = {
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in sources(PACKAGE)
        if path.parent.name not in ("capture", "sampler", "system") and path.name != "text.py"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if OWN_WORD.search(line)
    }
    assert own == set()


def test_categories_of_objects_become_text_and_nothing_else_changes() -> None:
    kinds = pd.Categorical.from_codes([1, 0, -1], pd.Index(["a", "b"], dtype=object))
    plain = pd.DataFrame({"n": [1, 2, 3], "t": pd.Series(["x", "y", "z"], dtype=TEXT), "o": [["k"], None, 1]})
    assert with_text(plain) is plain
    typed = with_text(plain.assign(k=kinds))
    assert typed["k"].cat.categories.dtype == TEXT
    assert typed["k"].tolist()[:2] == ["b", "a"]
    assert typed["k"].isna().tolist() == [False, False, True]
    assert typed[["n", "t", "o"]].dtypes.equals(plain.dtypes)
    assert with_text(typed) is typed
