"""`make accuracy`: a miss is real, tried again or undecided, depending on the machine; the table records it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.accuracy import disturbance
from tests.accuracy.conftest import pytest_runtest_protocol
from tests.accuracy.disturbance import Disturbance
from tests.accuracy.judging import BEGIN, END, Figures, Missed, write_table

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

#: Runs the checks of a folder with a probe that tells, run by run, what `SAYS` holds.
CONFTEST = """
import tests.accuracy.conftest as accuracy
from pathlib import Path
from tests.accuracy.conftest import *

accuracy.HERE = Path(__file__).parent
accuracy.PAGE = Path(__file__).parent / "accuracy.md"
SAYS = {says!r}

class Probe:
    def start(self):
        self.said = SAYS.pop(0)

    def reason(self):
        return self.said

accuracy.probe = Probe
"""


def checked(
    pytester: pytest.Pytester, check: str, *says: str | None, options: tuple[str, ...] = ()
) -> pytest.RunResult:
    """Return a run of one check whose probe says that for each run of it; `calls` counts the runs."""
    pytester.makeconftest(CONFTEST.format(says=list(says)))
    body = "\n".join(f"    {line}" for line in check.splitlines())
    pytester.makepyfile(f"calls = []\n\ndef test_it(figure):\n    calls.append(1)\n{body}\n")
    pytester.makeini("[pytest]\nmarkers =\n    accuracy: a\n    timeout: t\n")
    # In a process of its own: the real conftest, which this one changes, may be at work in ours.
    pytester._monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs", *options)


def test_the_tests_of_other_folders_run_without_a_look_at_the_machine() -> None:
    elsewhere: Any = SimpleNamespace(path=Path(__file__))
    assert pytest_runtest_protocol(elsewhere, None) is None


MISSES = 'figure("a rate", 0.7, at_most=0.5, unit="MB/s")'


def test_a_miss_on_an_undisturbed_machine_is_real(pytester: pytest.Pytester) -> None:
    result = checked(pytester, MISSES, None)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["*Missed: a rate: 0.7 MB/s, at most 0.5 MB/s expected", "| a rate | 0.7 MB/s * | MISSED *|"]
    )


def test_a_miss_on_a_disturbed_machine_is_tried_again_and_may_turn_out_real(pytester: pytest.Pytester) -> None:
    result = checked(pytester, MISSES, "others were busy", None)

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)


def test_a_check_that_held_when_it_ran_again_holds(pytester: pytest.Pytester) -> None:
    result = checked(pytester, 'figure("a rate", 1 / len(calls), at_most=0.5)', "others were busy", None)

    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["| a rate | 0.5 * | at most 0.5 | held (run 2) |"])
    result.stdout.no_fnmatch_line("*MISSED*")


def test_what_missed_in_disturbed_runs_only_is_undecided_and_no_failure(pytester: pytest.Pytester) -> None:
    result = checked(pytester, MISSES, *["others were busy"] * 4)

    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*undecided (disturbed): a rate: 0.7 MB/s*; others were busy"])
    result.stdout.fnmatch_lines(["| a rate | 0.7 MB/s | at most 0.5 MB/s | undecided (disturbed) |"])


def test_a_check_without_a_truth_of_its_own_is_undecided_on_a_quiet_machine_too(pytester: pytest.Pytester) -> None:
    check = "from tests.accuracy.judging import Unsettled\nraise Unsettled('layers are 9 % apart')"
    result = checked(pytester, check, *[None] * 4)

    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*undecided (disturbed): layers are 9 % apart; nothing else was seen to disturb it"])


@pytest.mark.slow
@pytest.mark.parametrize("error", ["1 / 0", "assert False"])
def test_whatever_else_fails_is_never_tried_again(pytester: pytest.Pytester, error: str) -> None:
    result = checked(pytester, error, "others were busy")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)


def test_the_table_is_written_between_its_markers(pytester: pytest.Pytester) -> None:
    page = pytester.path / "accuracy.md"
    page.write_text(f"# Accuracy\n\n{BEGIN}\n\nold\n\n{END}\n\nMore.\n", "utf-8")
    result = checked(pytester, 'figure("a|b", 0.031, within=(0.02, 0.05), unit="%")', None, options=("--write-table",))

    assert result.ret == pytest.ExitCode.OK
    text = page.read_text("utf-8")
    assert text.startswith(f"# Accuracy\n\n{BEGIN}\n\nMeasured on 20")
    assert "torch" in text
    assert "| a\\|b   | 3.1 %    | 2 % to 5 % | held    |" in text
    assert "old" not in text
    assert text.endswith(f"{END}\n\nMore.\n")


def test_a_page_without_a_place_for_the_table_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no place for the table"):
        write_table(page, [])
    assert page.read_text() == "nothing"


def test_a_value_that_is_not_a_number_misses_and_one_limit_is_needed() -> None:
    with pytest.raises(Missed):
        Figures()("x", float("nan"), at_most=1)
    with pytest.raises(Missed):
        Figures()("x", 1, within=(2, 3))
    with pytest.raises(TypeError, match="give one of"):
        Figures()("x", 1)
    figures = Figures()
    figures("x", 12345.6, at_least=1, unit="ms")
    assert (figures.rows[0].measured, figures.rows[0].limit) == ("12,346 ms", "at least 1 ms")


@pytest.mark.parametrize(
    ("others_s", "steal_s", "pace_s", "words"),
    [
        (0.5, 0.0, 1.0, None),
        (2.0, 0.0, 1.0, "other processes used 0.20 cores"),
        (0.0, 0.5, 1.0, "the hypervisor took 0.05 cores"),
        (0.0, 0.0, 1.2, "the pace of a fixed loop changed by 20%"),
        (0.0, 0.0, 1 / 1.2, "the pace of a fixed loop changed by 20%"),
    ],
)
def test_disturbances_of_the_machine_are_reported(
    monkeypatch: pytest.MonkeyPatch, others_s: float, steal_s: float, pace_s: float, words: str | None
) -> None:
    """Over ten seconds of which this process used four."""
    monkeypatch.setattr(disturbance, "_pace_s", iter([1.0, pace_s]).__next__)
    monkeypatch.setattr(disturbance, "_machine_s", iter([(100.0, 7.0), (104.0 + others_s, 7.0 + steal_s)]).__next__)
    monkeypatch.setattr(disturbance, "_own_s", iter([50.0, 54.0]).__next__)
    monkeypatch.setattr(disturbance.time, "monotonic", iter([3.0, 13.0]).__next__)
    look = Disturbance()
    look.start()

    assert look.reason() == words


def test_the_probe_reads_this_machine() -> None:
    look = Disturbance()
    look.start()
    said = look.reason()
    assert said is None or any(word in said for word in ("used", "took", "pace"))
    assert disturbance._own_s() >= sum(psutil.Process().cpu_times()[:2]) - 0.1
