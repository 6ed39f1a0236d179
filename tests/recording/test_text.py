"""Text in frames is one type with one kind of missing, and a report the same words, whichever pandas there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfnb.profile.profile import Profile
from perfnb.recording.frame_files import FrameFile, SavedColumn, write_frame
from perfnb.recording.recording import Recording
from perfnb.recording.samples import watch_record
from perfnb.recording.schema import conform
from perfnb.recording.text import TEXT, with_text
from perfnb.telemetry.history import WatchMark
from tests.recordings import ByHand
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


def recording() -> Recording:
    """Return a step of 100 ms: a layer within another, work that no layer owns, memory, and a GPU held below its
    clock.
    """
    ms = 1000.0
    hand = ByHand().step(0, 100 * ms)
    outer = hand.layer("model")
    inner = [hand.layer(f"model.{name}", outer) for name in ("zeta", "alpha")]
    hand.event("pf_data", 0, 5 * ms)
    hand.call(outer, 5 * ms, 45 * ms)
    for number, layer in enumerate(inner):
        begin = (10 + 15 * number) * ms
        hand.call(layer, begin, begin + 12 * ms)
        hand.op("aten::mm", begin + ms, begin + 9 * ms, sequence=number)
        hand.kernel("gemm", begin + 2 * ms, begin + 3 * ms, begin + 8 * ms)
        hand.node("MmBackward0", (75 - 15 * number) * ms, (85 - 15 * number) * ms, sequence=number)
        hand.block(begin + ms, (80 - 15 * number) * ms, 1000 + 500 * number, 1 << (20 - number))
    hand.node("AccumulateGrad", 86 * ms, 90 * ms, sequence=-1)
    hand.event("Optimizer.step#SGD.step", 91 * ms, 99 * ms, "user_annotation")
    hand.op("aten::add_", 92 * ms, 98 * ms)
    hand.known(1, 10, 4096, "parameters", inner[0], "model.zeta.weight")
    made = hand.recording()
    readings = {
        "host": {"cpu_percent": [30.0, 40.0, 50.0, np.nan]},
        "gpu0": {"busy_percent": [90.0, 80.0, np.nan, 70.0], "throttle_reasons": [0, 0x4, 0x4 | 0x8, np.nan]},
    }
    each = {"t_s": [0.0, 0.05, 0.1, 0.15], "window_s": 0.05, "read_ms": 1.0, "late_ms": 0.0}
    each |= {"missed_ticks": 0.0, "readings": 1.0}
    columns = {
        device: {name: np.broadcast_to(np.array(values, float), 4) for name, values in (each | own).items()}
        for device, own in readings.items()
    }
    watch = watch_record(columns, [WatchMark("epoch", 0, 0.05, 0.1)])
    meta = {"interval_s": 0.05, "devices": {"host": {}, "gpu0": {"name": "made up"}}, "absent": {}, "notes": []}
    facts = {**made.meta, "watch": meta | {"ticks": 4, "missed": 0}}
    timed = len(made.steps) - 1
    number = pd.array([None] * timed + [0], dtype="Int64")
    steps = made.steps.assign(start_s=[0.0] * timed + [0.1], step=number)
    return replace(made, meta=facts, watch=watch, steps=steps)


@pytest.mark.slow
def test_a_report_is_the_same_text_under_every_pandas(golden: Callable[[str, str], None]) -> None:
    profile = Profile(recording())
    layers = profile.layers.reset_index()[["layer", "module", "depth", "kernels"]]
    rows = "\n".join(" ".join("-" if pd.isna(value) else str(value) for value in row) for row in layers.to_numpy())

    golden("report_by_hand.txt", f"{profile}\n\n{rows}\n")


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
