"""What the report shows of compiled code."""

from __future__ import annotations

from collections.abc import Callable

from tests.samples import texts
from tests.samples.compiled import DOCUMENTS


def test_the_documents_of_the_room(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))


def test_graph_breaks_come_first_and_decide_the_verdict() -> None:
    broken, whole = DOCUMENTS["compiled with a graph break"](), DOCUMENTS["compiled as one graph"]()

    assert [section.key for section in broken.sections] == ["regions", "compiled_kernels"]
    assert [section.key for section in whole.sections] == ["compiled_kernels", "regions"]
    assert (broken.verdict.state, whole.verdict.state) == ("bad", "bad")
    assert broken.verdict.why == "Call to print, at model.py:9."
    assert "39 % of the forward regions' time" in whole.verdict.sentence
