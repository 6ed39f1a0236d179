"""Define `Perf`, the object that the fixture provides to tests.

It counts the work of a step and compares the counts with a record, and the step's time with another revision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from perfnb.gate.counts import counts_of
from perfnb.gate.plugin import PROPERTY, REVISION
from perfnb.gate.records import Counts, differences, file_of, missing, read_records, stable, update_record
from perfnb.gate.reports import seen_words, time_words
from perfnb.gate.revisions import MissingTestError, compare_revisions

if TYPE_CHECKING:
    from perfnb.bench.paired_times import PairedTimes


@dataclass(frozen=True)
class GatedStep:
    """The results for a gated step.

    Attributes
    ----------
    counts : mapping of str to int or None
        The work of one step. Counts that do not exist on its device are ``None``.
    environment : str
        A description of the environment. Counts depend on it as well as on the code.
    times : PairedTimes or None
        With ``--perf-against``, the comparison of the working tree's step with the other revision's step.
    """

    counts: Counts
    environment: str
    times: PairedTimes | None


class Perf:
    """A gate for a test's steps. The fixture ``perf`` is a `Perf` object.

    Parameters
    ----------
    item : pytest.Item
        The test.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item, self._config = item, item.config

    def step(self, step: Callable[..., Any], batches: Iterable[Any] | None = None, *, name: str = "") -> GatedStep:
        """Fail if a step's work differs from the record next to its test file, or if the step takes longer than before.

        The step runs a few times in this process while its peak memory, FLOPs, ops, GPU kernels, synchronisations and
        graph breaks are counted. These counts must equal the recorded ones exactly. If counts were recorded only for
        another environment, they are not compared and the test is skipped.

        With ``--perf-against REV``, the test also runs in two new processes, one in the working tree and one at that
        revision. When both have reached this call, they take turns running the step.

        Parameters
        ----------
        step : callable
            ``step()``, or ``step(batch)`` with `batches`.
        batches : iterable, or callable returning one, optional
            The batches, which are restarted when they are exhausted. The time spent waiting for a batch does not count.
        name : str
            A name that distinguishes the steps of a test that has several.

        Returns
        -------
        GatedStep
        """
        __tracebackhide__ = True
        inside = self._item.nodeid.partition("::")[2]
        counts, environment = counts_of(step, batches)
        failures, skips, said = self._counted(f"{inside} {name}".strip(), counts, environment, step, batches)
        times, gate, option = None, self._config.stash.get(REVISION, None), self._config.getoption
        limit: float = option("--perf-limit")
        facts: dict[str, Any] = {"test": self._item.nodeid, "name": name, "counts": counts}
        if gate is not None:
            try:
                measure = partial(compare_revisions, self._item, name, gate, limit, option("--perf-budget"))
                times, slower = confirmed(measure, limit)
            except MissingTestError as error:
                skips = [*skips, f"its time is not compared: {error}"]
                facts["time"] = f"time not compared: {error}"
            else:
                if slower:
                    failures.append(f"the step takes {time_words(times)}, all of which is above {limit:g}.")
                # List counts that could not be determined at the end.
                skips = [] if times.ratio_ci else [f"{len(times.a_ms)} pairs are too few: increase --perf-budget"]
                facts |= {"time": time_words(times), "seen": seen_words(times, limit), "ms": list(times.b_ms)}
        elif option("--perf-json") is not None:
            from perfnb.bench.timing import time_step

            facts["ms"] = list(time_step(step, batches).samples_ms)
        facts |= {"environment": environment, "said": said, "failures": failures, "skips": skips}
        self._item.user_properties.append((PROPERTY, facts))
        if failures:
            pytest.fail("perf: " + "\nperf: ".join(failures), pytrace=False)
        if skips:
            pytest.skip("perf: " + "; ".join(skips))
        return GatedStep(counts, environment, times)

    def _counted(
        self, test: str, counts: Counts, environment: str, step: Callable[..., Any], batches: Any
    ) -> tuple[list[str], list[str], str]:
        """Check a step's counts. Return the failures, the reason why nothing was compared, and what was done."""
        file = file_of(self._item.path)
        if self._config.getoption("--perf-update"):
            kept, vary = stable(counts, counts_of(step, batches)[0])
            update_record(file, test, environment, kept)
            return [], [], f"recorded, without {', '.join(vary)}, which vary" if vary else "recorded"
        records = read_records(file)
        if test not in records:
            words = f"no counts are recorded in {file.name}: run pytest --perf-update, and commit the file."
            return [words], [], "not recorded"
        if (reason := missing(records, test, environment)) is not None:
            return [], [reason], f"not compared: {reason}"
        if found := differences(records[test][environment], counts):
            words = f"the step has changed: {', '.join(found)}. If this is intended, run pytest --perf-update."
            return [words], [], ", ".join(found)
        return [], [], "as recorded"


def confirmed(measure: Callable[[], PairedTimes], limit: float) -> tuple[PairedTimes, bool]:
    """Measure a step, and if it is too slow, measure it again in new processes. Return whether both were too slow.

    The memory addresses of a process can make all of its steps faster or slower, no matter how many are measured.
    """
    for _ in range(2):
        times = measure()
        if times.ratio_ci is None or times.ratio_ci[0] <= limit:
            return times, False
    return times, True
