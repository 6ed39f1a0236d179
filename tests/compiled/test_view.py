"""What the report shows of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from perfnb.compiled.tab import compiled_document
from perfnb.compiled.tables import compiled_summary
from perfnb.recording.compiled_layers import CompiledCode
from perfnb.recording.raw_frames import frame_of_rows
from tests.recording.test_compiled_layers import of_one_step
from tests.samples import texts
from tests.samples.compiled import DOCUMENTS


def test_the_documents_of_the_room(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


def test_graph_breaks_come_first_and_decide_the_verdict() -> None:
    breaks, whole = DOCUMENTS["compiled with a graph break"](), DOCUMENTS["compiled as one graph"]()

    assert [section.key for section in breaks.sections] == ["regions", "compiled_kernels"]
    assert [section.key for section in whole.sections] == ["compiled_kernels", "regions"]
    assert (breaks.verdict.state, whole.verdict.state) == ("bad", "bad")
    assert breaks.verdict.why == "Call to print, at model.py:9."
    assert "39 % of the forward regions' time" in whole.verdict.sentence


def test_a_function_that_a_break_leaves_uncompiled_decides_the_verdict() -> None:
    recording = of_one_step()
    left = CompiledCode("3/0", "run", "/home/model.py:30", broke="Call to print", broke_at="/home/model.py:32")
    assert recording.compiled is not None
    code = pd.concat([recording.compiled.code, frame_of_rows("compiled_code", [left])], ignore_index=True)
    summary = compiled_summary(replace(recording, compiled=replace(recording.compiled, code=code)))
    assert summary is not None

    verdict = compiled_document(summary).verdict

    assert verdict.sentence == "Graphs break once: functions stay uncompiled."
    assert verdict.why == "Call to print, at model.py:32."
    assert summary.regions.loc["3/0", ["calls", "ms", "gap_ms"]].isna().all()
