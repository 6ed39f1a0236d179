"""Documents of `profile` and `findings`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from perfnb.draw.document import Document
from perfnb.profile.report import report_document
from perfnb.profile.summary import Summary
from tests import summaries
from tests.findings import findings_samples
from tests.samples import HOSTILE

_SUMMARIES: dict[str, Callable[[], Summary]] = {
    "profile": summaries.small_cnn,
    "profile of a GPU": lambda: summaries.gpt(2, recompute=True, gpu=True),
    "profile of two models": summaries.gan,
    "profile of hostile names": summaries.hostile,
    "profile without figures": summaries.unknown_figures,
    "profile without layers": summaries.empty,
    "profile with findings": findings_samples.with_findings,
    "profile with a lever": lambda: findings_samples.with_findings(findings_samples.with_remedy({"magic": "cell"})),
    "profile with hostile findings": lambda: findings_samples.with_findings(findings_samples.hostile(HOSTILE)),
}


def _document(make: Callable[[], Summary]) -> Document:
    return report_document(make())


DOCUMENTS: dict[str, Callable[[], Document]] = {name: partial(_document, make) for name, make in _SUMMARIES.items()}
