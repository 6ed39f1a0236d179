"""Documents of `bench`."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.bench.input_view import input_bound_document
from perfnb.draw.document import Document
from tests.bench.test_input_figures import planted

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "input test": lambda: input_bound_document(planted(30, 20)),
}
