"""Documents of `experiments`, and of the step times that it keeps."""

from __future__ import annotations

from collections.abc import Callable

from perfnb.bench.quality import Loss
from perfnb.draw.document import Document
from perfnb.experiments.ab_test import ABTest
from perfnb.experiments.compared_figures import Quality
from perfnb.profile.timing import shown
from perfnb.stats.step_times import StepTimes
from tests.experiments.ab_samples import EXAMPLES, experiment, figures
from tests.experiments.journal_entries import DAMAGED, ENVIRONMENT, TRIED, report_entry, timing_entry
from tests.experiments.journal_entries import shown as journal
from tests.samples import HOSTILE


def hostile_test() -> Document:
    quality = Quality((Loss(HOSTILE, 0.5, limit=0.1),), "function")
    times = experiment(0.8, a=HOSTILE, b=HOSTILE)
    return figures(times=times, quality=quality, limits={HOSTILE: 0.1}, change=HOSTILE)._document()


def hostile_journal() -> Document:
    entries = (
        timing_entry(0, change=HOSTILE, hypothesis=HOSTILE, name=HOSTILE),
        report_entry(1, 20.0, 0.5, "accept", change=HOSTILE, name=HOSTILE, disturbed=HOSTILE),
        timing_entry(2, 20.0, change=HOSTILE, name=HOSTILE, environment={**ENVIRONMENT, "torch": HOSTILE}),
    )
    return journal(*entries, damaged={HOSTILE: HOSTILE}, where=HOSTILE)


TIMES = StepTimes((10.2, 10.1, 14.0, 10.3) * 20, 32, 2560, (30.0, 12.0), True, {"gc_share": 0.04}, wanted=200)

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "A/B test": EXAMPLES["judged"]._document,
    "A/B test near a limit": EXAMPLES["near a limit"]._document,
    "A/B test of few pairs": lambda: ABTest(**vars(experiment(0.5, 4)))._document(),
    "hostile A/B test": hostile_test,
    "journal": lambda: journal(*TRIED, damaged=DAMAGED),
    "hostile journal": hostile_journal,
    "empty journal": journal,
    "step time": lambda: shown(TIMES)._document(),
    "no step": lambda: shown(StepTimes(()))._document(),
}
