"""What a step time says of itself."""

from __future__ import annotations

from collections.abc import Callable

from tests.samples import texts
from tests.samples.bench import DOCUMENTS


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    golden("samples.txt", texts(DOCUMENTS))
