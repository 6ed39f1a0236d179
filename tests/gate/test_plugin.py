"""The fixture `perf` in a test run: what it records, compares, skips and refuses."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

import perfnb.gate.gating
from perfnb.bench.paired_times import PairedTimes, paired_times
from perfnb.bench.timing import time_step
from perfnb.gate.counts import counts_of
from perfnb.gate.plugin import Reports, _end_on_termination, pytest_configure
from perfnb.gate.reports import benchmark_json, line, markdown, seen_words
from perfnb.gate.revisions import MissingTestError, Revision, paired
from tests.gate.repositories import commit, git, nothing_is_left, repository, write_step
from tests.waiting import wait_until

pytest_plugins = ["pytester"]

PLUGIN = ("-p", "perfnb.gate.plugin", "-p", "no:cacheprovider")
SUM = """\
import torch

def test_sum(perf):
    x = torch.ones({size})
    perf.step(lambda: {step})
"""


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import here what the runs inside this process import, or each of them would do it again."""
    counts_of(lambda: torch.ones(1))
    time_step(lambda: None, steps=1)
    paired(Sides(1.0), Sides(1.0), ("a", "b"), 1.03, 1.0)


class Sides:
    """A process whose steps take so many milliseconds, more or less."""

    def __init__(self, ms: float) -> None:
        self._ms, self._noise = ms, random.Random(0)

    def turn(self, lead: int, steps: int) -> float:
        """Return milliseconds per step."""
        return self._ms * (1 + self._noise.uniform(-0.01, 0.01))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Return the counts of every step and of nothing else: counting takes a second."""
    counts: dict[str, int | None] = {"peak_bytes": 100, "ops": 3, "kernels": None}
    monkeypatch.setattr(perfnb.gate.gating, "counts_of", lambda *_: (dict(counts), "torch 2, CPU"))
    return counts


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("TMPDIR", str(pytester.mkdir("temporary")))
    monkeypatch.setattr("tempfile.tempdir", None)
    # The processes of a revision must find perfnb, and the first test of a run imports much.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")])))
    return pytester


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, *options)


def says(result: pytest.RunResult, *lines: str) -> None:
    result.stdout.fnmatch_lines([f"*{line}*" for line in lines])


def test_counts_are_recorded_then_compared_exactly(runs: pytest.Pytester) -> None:
    test = runs.makepyfile(test_sum=SUM.format(size=100, step="x.sum()"))
    result = run(runs)
    result.assert_outcomes(failed=1)
    says(result, "perf: no counts are recorded in test_sum.perf.json: run pytest --perf-update, and commit the file.")

    run(runs, "--perf-update").assert_outcomes(passed=1)
    ((environment, counts),) = json.loads((runs.path / "test_sum.perf.json").read_text())["tests"]["test_sum"].items()
    assert (counts["synchronisations"], counts["kernels"]) == (0, None)
    result = run(runs)
    result.assert_outcomes(passed=1)
    says(result, "test_sum.py::test_sum: counts as recorded")

    test.write_text(SUM.format(size=100, step="x.sum().item()"))
    result = run(runs)
    result.assert_outcomes(failed=1)
    says(result, "perf: the step has changed: ops*synchronisations 0 → 1.*If this is intended, run pytest --perf-up")

    record = runs.path / "test_sum.perf.json"
    record.write_text(record.read_text().replace(environment, "torch 1.0, CPU (abacus), 1 thread"))
    result = run(runs, "-rs")
    result.assert_outcomes(skipped=1)
    says(result, f"recorded for another environment (torch 1.0, CPU (abacus), 1 thread), but this one is {environment}")


def test_a_figure_that_varies_is_not_recorded_and_the_other_ones_are(
    runs: pytest.Pytester, counted: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = itertools.count()
    varying = lambda *_: ({**counted, "ops": next(ops)}, "torch 2, CPU")  # noqa: E731
    monkeypatch.setattr(perfnb.gate.gating, "counts_of", varying)
    runs.makepyfile(test_sum=SUM.format(size=100, step="x.sum()"))
    result = run(runs, "--perf-update")
    result.assert_outcomes(passed=1)
    says(result, "counts recorded, without ops, which vary")
    run(runs).assert_outcomes(passed=1)


def test_steps_of_a_test_have_names_and_tests_have_parameters(
    runs: pytest.Pytester, counted: dict[str, int | None]
) -> None:
    runs.makepyfile(
        test_two="""
        import pytest, torch

        class TestIt:
            @pytest.mark.parametrize("size", [1, 2])
            def test_two(self, perf, size):
                found = perf.step(lambda: torch.ones(size))
                assert found.counts["peak_bytes"] == 100 and found.times is None
                perf.step(lambda batch: torch.ones(batch), [3, 3], name="large")
        """
    )
    run(runs, "--perf-update").assert_outcomes(passed=2)
    run(runs).assert_outcomes(passed=2)
    recorded = json.loads((runs.path / "test_two.perf.json").read_text())["tests"]
    assert list(recorded) == [f"TestIt::test_two[{size}]{name}" for size in (1, 2) for name in ("", " large")]
    assert all(found == {"torch 2, CPU": counted} for found in recorded.values())


def facts_of(**others: object) -> dict[str, Any]:
    facts = {"test": "test_a.py::test_a", "name": "", "counts": {"ops": 3}, "environment": "torch 2, CPU"}
    return {**facts, "said": "as recorded", "failures": [], "skips": [], **others}


def test_the_statistics_of_a_step_are_those_of_its_times() -> None:
    times = [3.0, 1.0, 2.0, 4.0, 100.0]
    steps = [facts_of(ms=times, name="big"), facts_of(), facts_of(ms=[2.0])]
    found, alone = json.loads(benchmark_json(steps))["benchmarks"]

    assert found["name"] == "test_a big"
    outliers = {name: found["stats"].pop(name) for name in ("iqr_outliers", "stddev_outliers", "outliers")}
    assert outliers == {"iqr_outliers": 1, "stddev_outliers": 1, "outliers": "1;1"}
    figures = {"min": 0.001, "max": 0.1, "mean": 0.022, "median": 0.003, "q1": 0.002, "q3": 0.004, "iqr": 0.002}
    figures |= {"stddev": 0.0436176, "ld15iqr": 0.001, "hd15iqr": 0.004, "total": 0.11, "ops": 1 / 0.022}
    assert found["stats"] == pytest.approx({**figures, "rounds": 5, "iterations": 1}, rel=1e-5)
    stats = alone["stats"]
    assert [stats[name] for name in ("min", "q1", "median", "q3", "hd15iqr")] == [0.002] * 5
    assert (stats["stddev"], stats["iqr"], stats["outliers"]) == (0.0, 0.0, "0;0")
    steps = [facts_of(ms=[low, 4.0, 5.0, 6.0, high]) for low, high in ((1.0, 9.0), (0.9, 9.1))]
    found = [one["stats"] for one in json.loads(benchmark_json(steps))["benchmarks"]]
    assert [one["iqr"] for one in found] == pytest.approx([0.002, 0.002])
    # Times within 1.5 times this range of the quartiles are no outliers.
    assert [(one["iqr_outliers"], one["ld15iqr"], one["hd15iqr"]) for one in found] == [
        (0, 0.001, 0.009),
        (2, 0.004, 0.006),
    ]


def test_a_table_has_a_row_for_each_step() -> None:
    steps = [
        facts_of(),
        facts_of(failures=["slow"], skips=["few"], time="1.2 ×", seen="3 %", name="b"),
        facts_of(skips=["few | less"], said="ops 1 | 2"),
    ]
    assert markdown(steps).splitlines()[4:] == [
        "| ✅ | `test_a.py::test_a` | as recorded | not compared |  |",
        "| ❌ | `test_a.py::test_a b` | as recorded | 1.2 × | 3 % |",
        "| ⏭️ | `test_a.py::test_a` | ops 1 \\| 2 | not compared |  |",
        "",
        "Measured with torch 2, CPU.",
        "",
    ]
    assert line(steps[1]) == "test_a.py::test_a b: counts as recorded; 1.2 ×; 3 %"
    assert line(steps[2]) == "test_a.py::test_a: counts ops 1 | 2"
    said = "9 of 10 such runs would detect a slowdown of 5.1 %"  # 1.03 × 1.02
    assert seen_words(SimpleNamespace(smallest_detectable=0.02), 1.03) == said


@pytest.mark.parametrize("written", [True, False])
def test_the_steps_of_a_run_are_reported_once(written: bool, tmp_path: Path) -> None:
    files = {"--perf-json": tmp_path / "out.json", "--perf-summary": tmp_path / "out.md"}
    config: Any = SimpleNamespace(getoption=(files if written else {}).get)
    reports, lines = Reports(config), list[str]()
    terminal = SimpleNamespace(section=lines.append, line=lines.append)
    reports.pytest_terminal_summary(terminal)
    reports.pytest_sessionfinish()
    assert lines == []
    assert not files["--perf-summary"].exists()
    for when in ("setup", "call", "teardown"):  # pytest repeats the properties of a test after it
        properties = [("other", 1), ("perf", facts_of(name=when, ms=[2.0])), ("perf", facts_of(name="next"))]
        reports.pytest_runtest_logreport(SimpleNamespace(when=when, user_properties=properties))  # type: ignore[arg-type]
    reports.pytest_terminal_summary(terminal)
    reports.pytest_sessionfinish()
    assert lines == ["perf", *(f"test_a.py::test_a {name}: counts as recorded" for name in ("call", "next"))]
    assert [file.exists() for file in files.values()] == [written, written]
    if written:
        assert len(json.loads(files["--perf-json"].read_text())["benchmarks"]) == 1
        assert files["--perf-summary"].read_text("utf-8").count("| ✅ |") == 2


def test_json_and_markdown(runs: pytest.Pytester, counted: dict[str, int | None], clock: object) -> None:
    runs.makepyfile(test_sum="import time\n" + SUM.format(size=100, step="(x.sum(), time.sleep(0.002))"))
    run(runs, "--perf-update", "--perf-json=out.json", "--perf-summary=out.md").assert_outcomes(passed=1)
    (benchmark,) = json.loads((runs.path / "out.json").read_text())["benchmarks"]
    assert (benchmark["name"], benchmark["fullname"]) == ("test_sum", "test_sum.py::test_sum")
    assert benchmark["extra_info"] == {**counted, "environment": "torch 2, CPU"}
    stats = benchmark["stats"]
    assert {name: stats[name] for name in ("min", "max", "mean", "median", "q1", "q3")} == pytest.approx(
        dict.fromkeys(("min", "max", "mean", "median", "q1", "q3"), 0.002), rel=0.01
    )
    assert stats["ops"] == pytest.approx(500, rel=0.01)
    assert stats["total"] == pytest.approx(stats["rounds"] * 0.002, rel=0.01)
    run(runs, "--perf-summary=out.md")
    tables = (runs.path / "out.md").read_text()
    assert tables.count("## Steps") == 2
    assert "| ✅ | `test_sum.py::test_sum` | as recorded | not compared |" in tables


@pytest.mark.parametrize(
    ("ratio", "outcome", "time"),
    [
        (
            1.0,
            "passed",
            r"1.000 × \[1.000, 1.000\] the time of HEAD, in 8 pairs; 9 of 10 such runs would detect a slowdown",
        ),
        (
            1.2,
            "failed",
            r"1.200 × \[1.200, 1.200\] the time of HEAD, in 8 pairs; 9 of 10 such runs would detect a slowdown",
        ),
        (None, "skipped", r"1.200 × the time of HEAD, in 5 pairs; 9 of 10 such runs"),
        ("missing", "skipped", r"time not compared: it is new"),
    ],
)
def test_the_time_of_a_step_decides(
    ratio: float | str | None,
    outcome: str,
    time: str,
    runs: pytest.Pytester,
    counted: dict[str, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = []

    def compare(item: pytest.Item, name: str, revision: Revision, *options: float) -> PairedTimes:
        given.append((item.name, name, revision.name, *options))
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        if ratio == "missing":
            raise MissingTestError("it is new")
        a_ms, by = ([5.0] * 5, 1.2) if ratio is None else ([5.0] * 8, float(ratio))
        b_ms = [ms * by for ms in a_ms]
        return paired_times(a_ms, b_ms, equal_within=0.05, a_name="HEAD", b_name="tree", planned=8, needed=8)

    monkeypatch.setattr(perfnb.gate.gating, "compare_revisions", compare)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        repository(runs.path)
        run(runs, "--perf-update").assert_outcomes(passed=1)
        limits = [] if ratio == "missing" else ["--perf-limit=1.05", "--perf-budget=7"]
        result = run(runs, "--perf-against=HEAD", *limits, "--perf-json=out.json", "-rs")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)

    result.assert_outcomes(**{outcome: 1})
    limit = (1.05, 7.0) if limits else (1.03, 60.0)
    assert given == [("test_step", "", "HEAD", *limit)] * (2 if ratio == 1.2 else 1)
    assert re.search(f"test_step: counts as recorded; {time}", result.stdout.str())
    for kind, said in (
        (1.2, "perf: the step takes 1.200 × .1.200, 1.200. the time of HEAD, in 8 pairs, all of which is above 1.05."),
        (None, "perf: 5 pairs are too few: increase --perf-budget"),
        ("missing", "perf: its time is not compared: it is new"),
    ):
        assert bool(re.search(said, result.stdout.str())) == (ratio == kind)
    benchmarks = json.loads((runs.path / "out.json").read_text())["benchmarks"]
    assert [one["stats"]["max"] for one in benchmarks] == pytest.approx(
        [] if ratio == "missing" else [0.005 * (ratio or 1.2)]  # type: ignore[operator]
    )


@pytest.mark.parametrize(
    ("option", "outside", "inside"),
    [("limit", ("1", "2"), ("1.001", "1.999")), ("budget", ("0", "1e6"), ("0.1", "999999"))],
)
def test_options_have_ranges_without_their_ends(option: str, outside: tuple[str, str], inside: tuple[str, str]) -> None:
    usual = {"--perf-limit": 1.03, "--perf-budget": 60.0}
    for value in (*outside, *inside):
        options = {**usual, f"--perf-{option}": float(value)}
        config = SimpleNamespace(getoption=lambda name, default=None, options=options: options.get(name, default))
        config.pluginmanager = SimpleNamespace(register=lambda *_: None)
        with pytest.raises(pytest.UsageError, match=option) if value in outside else nullcontext():
            pytest_configure(config)  # type: ignore[arg-type]


@pytest.mark.parametrize(("own", "many"), [({}, None), ({}, 2), ({"workerinput": {}}, None)])
def test_only_one_process_reports_and_it_alone_may_write_and_time(own: dict[str, Any], many: int | None) -> None:
    registered: list[str] = []
    options = {"--perf-limit": 1.03, "--perf-budget": 60.0, "numprocesses": many}
    config: Any = SimpleNamespace(getoption=lambda name, default=None: options.get(name, default), **own)
    config.pluginmanager = SimpleNamespace(register=lambda plugin, name: registered.append(name))
    pytest_configure(config)
    assert registered == ([] if own else ["perfnb-reports"])
    options["--perf-update"] = True
    with pytest.raises(pytest.UsageError, match="--perf-update writes files") if own or many else nullcontext():
        pytest_configure(config)
    if own or many:
        options |= {"--perf-update": False, "--perf-against": "HEAD"}
        with pytest.raises(pytest.UsageError, match=r"--perf-against compares times.*without -n\.$"):
            pytest_configure(config)


def test_a_termination_ends_the_tests_like_an_interrupt_unless_others_handle_it() -> None:
    cleanups: list[Any] = []
    config: Any = SimpleNamespace(add_cleanup=cleanups.append)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _end_on_termination(config)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(_end_on_termination, config).result()  # only the main thread can handle signals
        assert cleanups == []
        _end_on_termination(config)
        with pytest.raises(pytest.exit.Exception) as ended:
            signal.raise_signal(signal.SIGTERM)
        assert ended.value.returncode == 143
        cleanups.pop()()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_wrong_use_is_one_sentence(runs: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, sentence in (
        (("--perf-against=HEAD",), "--perf-against: * is not in a git repository (*)."),
        (("--perf-limit=0.9",), "ERROR: --perf-limit must be between 1 and 2 (1.03 is 3 % slower)."),
        (("--perf-budget=0",), "ERROR: --perf-budget must be a number of seconds above 0."),
    ):
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(runs.path.parent))
        result = run(runs, *options)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([f"*{sentence}"])
    repository(runs.path)
    result = run(runs, "--perf-against=elsewhere/main")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --perf-against: elsewhere/main is not a revision of the repository *. A shallow clone must include*"]
    )


def test_loading_the_plugin_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys, pytest, pluggy; before = set(sys.modules); import perfnb.gate.plugin\n"
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('perfnb')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_step_is_compared_with_that_of_another_revision(
    runs: pytest.Pytester, counted: dict[str, int | None]
) -> None:
    repository(runs.path, 5.0)
    run(runs, "--perf-update").assert_outcomes(passed=1)
    commit(runs.path)
    write_step(runs.path, 5.5)  # in the working tree alone

    result = run(runs, "--perf-against=HEAD", "--perf-json=out.json", "--perf-summary=out.md")
    result.assert_outcomes(failed=1)
    (found,) = re.findall(
        r"test_step: counts as recorded; (\S+) × \[(\S+), (\S+)\] the time of HEAD, in \d+ pairs; 9 of 10 such "
        r"runs would detect a slowdown of 3\.\d %",
        result.stdout.str(),
    )
    ratio, low, high = map(float, found)
    assert ratio == pytest.approx(1.1, rel=0.01)
    assert low <= ratio <= high
    says(result, "perf: the step takes 1.*, all of which is above 1.03.")
    (benchmark,) = json.loads((runs.path / "out.json").read_text())["benchmarks"]
    assert benchmark["stats"]["median"] == pytest.approx(0.0055, rel=0.02)
    assert "❌" in (runs.path / "out.md").read_text()
    assert nothing_is_left(runs.path, runs.path / "temporary")


@pytest.mark.slow
def test_an_interrupt_leaves_neither_a_worktree_nor_a_process(
    runs: pytest.Pytester, counted: dict[str, int | None]
) -> None:
    repository(runs.path)
    endless = "import time\n\ndef work():\n    time.sleep(0.05)\n"
    (runs.path / "package.py").write_text(endless)
    run(runs, "--perf-update").assert_outcomes(passed=1)
    commit(runs.path)
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--perf-against=HEAD"]
    children = list[psutil.Process]()
    with subprocess.Popen(
        [*command, "--perf-budget=1000"], cwd=runs.path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: len(serving(process.pid, children)) == 2)
            assert len(git(runs.path, "worktree", "list").splitlines()) == 2
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 2, output
    assert not any(child.is_running() for child in children)
    assert nothing_is_left(runs.path, runs.path / "temporary")


def serving(pid: int, found: list[psutil.Process]) -> list[psutil.Process]:
    """Find the processes that a test run has started to take turns; git's come and go."""
    found.clear()
    for one in psutil.Process(pid).children():
        with suppress(psutil.Error):
            found += [one] if "child.py" in " ".join(one.cmdline()) else []
    return found
