"""``perfnb compare`` as a process: what it says, and when it fails."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import perfnb as package
from perfnb.command.compare import _compared, _percent
from perfnb.command.sub_command import WrongUse
from perfnb.diff.step_times import slower_by_more_than, step_change, step_change_of
from perfnb.flame.host_profile import HostProfile
from perfnb.loop.run import RunSummary
from perfnb.profile.profile import Profile
from perfnb.ranks.ranks import Ranks
from perfnb.stats.step_times import StepTimes
from tests.command.processes import called
from tests.recordings import ByHand


def timing(folder: Path, name: str, median: float, steps: int = 40, noise: float = 0.01) -> Path:
    """Saved step times that spread around a median."""
    times = median * np.exp(np.random.default_rng(1).normal(0, noise, steps))
    return package.Timing(tuple(times / np.median(times) * median)).save(folder / name)


def test_slower_means_that_the_whole_interval_is_above_the_limit() -> None:
    a = StepTimes(tuple(10 + place / 10 for place in range(-10, 11)))
    b = StepTimes(tuple(1.1 * ms for ms in a.samples_ms))

    change = step_change(a, b)
    assert change.found is not None
    assert change.found.ratio == pytest.approx(1.1)
    low, high = change.found.ratio_ci or (0, 0)
    faster = step_change(b, a).found
    assert faster is not None
    assert low < 1.1 < high
    assert slower_by_more_than((low, high), 100 * (low - 1) - 0.01) is True
    assert slower_by_more_than((low, high), 100 * (low - 1) + 0.01) is False  # the median alone is beyond it
    assert slower_by_more_than(faster.ratio_ci, 0) is False


def test_too_few_steps_give_no_verdict() -> None:
    change = step_change(StepTimes((1.0,) * 5), StepTimes((2.0,) * 50))

    assert change.found is not None
    assert slower_by_more_than(change.found.ratio_ci, 0) is None
    assert step_change(StepTimes(()), StepTimes((1.0,))).found is None


def test_timed_steps_are_compared_if_both_have_some() -> None:
    frame = ByHand().step(0, 1000).recording().steps
    traced = frame[frame["pass"] == "traced"]

    assert step_change_of(frame, frame).kind == "timed"
    assert step_change_of(frame, traced).kind == "traced"
    assert (step_change_of(frame, traced).a.steps, step_change_of(frame, traced).b.steps) == (1, 1)


@pytest.mark.parametrize(
    ("median", "noise", "limit", "code"),
    [
        (10.0, 0.01, 3, 0),
        (11.0, 0.01, 3, 1),
        (11.0, 0.8, 3, 0),
    ],
)
def test_it_fails_only_where_the_change_is_certain(
    median: float, noise: float, limit: float, code: int, tmp_path: Path
) -> None:
    a, b = timing(tmp_path, "a", 10.0), timing(tmp_path, "b", median, noise=noise)

    done = called("compare", a, b, "--fail-if-slower", limit)
    assert (done.returncode, done.stderr) == (code, "")
    words = ("Failed: slower", "entirely above") if code else ("Passed: not shown to be slower", "and the limit is")
    said = f"{words[0]} by more than {limit:g} %: .*, {words[1]} {1 + limit / 100:g}\\.$"
    assert re.search(said, " ".join(done.stdout.split()))
    plain = called("compare", a, b)
    assert plain.returncode == 0
    assert plain.stdout.startswith("perfnb · comparison of step times · b against a\n")
    assert "Passed" not in plain.stdout
    done = called("compare", a, b, "--fail-if-slower", limit, "--json")
    value = json.loads(done.stdout)
    assert done.returncode == code
    assert (value["failed"], value["fail_if_slower_percent"]) == (bool(code), limit)
    assert value["facts"][-2:] == [f"baseline: {a}", f"candidate: {b}"]


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("2.5", 2.5), ("999999", 999999.0)])
def test_a_percentage_is_at_least_0_and_below_a_million(text: str, value: float) -> None:
    assert _percent(text) == value
    for wrong in ("-0.1", "1e6", "nan", "much"):
        with pytest.raises(ValueError):  # noqa: PT011
            _percent(wrong)


def test_what_cannot_be_judged_does_not_pass(tmp_path: Path) -> None:
    a, b = timing(tmp_path, "a", 10.0, steps=3), timing(tmp_path, "b", 20.0)

    done = called("compare", a, b, "--fail-if-slower", 5)
    assert (done.returncode, done.stdout) == (2, "")
    assert "at least 6 timed steps on each side, and there are 3 and 40" in done.stderr


def fake(kind: type, **values: Any) -> Any:
    """Return a result of a kind, which compares itself with another one."""

    def compare(self: Any, other: Any) -> Any:
        return SimpleNamespace(**values, of=(self, other))

    return type(kind.__name__, (kind,), {"__init__": lambda self: None, "compare": compare})()


def test_only_results_of_one_kind_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, hosts = fake(RunSummary, ratio_ci=(1.1, 1.2)), fake(HostProfile)
    found = {"run": runs, "host": hosts, "a/time": package.Timing((1.0,) * 8), "job": fake(Ranks)}
    monkeypatch.setattr("perfnb.profile.loading.load", found.__getitem__)

    compared = _compared("run", "run")
    assert (compared.ratio_ci, compared.too_few) == ((1.1, 1.2), "the runs have too few steps")
    assert compared.result.of == (runs, runs)  # type: ignore[attr-defined]
    frame = ByHand().step(0, 1000).recording().steps
    profiles = found["profile"] = fake(Profile)
    monkeypatch.setattr(Profile, "steps", frame[frame["pass"] == "traced"])
    compared = _compared("profile", "profile")
    too_few = "this takes at least 6 traced steps on each side, and there are 1 and 1"
    assert (compared.ratio_ci, compared.too_few) == (None, too_few)
    assert compared.result.of == (profiles, profiles)  # type: ignore[attr-defined]
    compared = _compared("host", "host")
    assert (compared.ratio_ci, compared.too_few) == (None, "host profiles have no steps")
    assert compared.result.of == (hosts, hosts)  # type: ignore[attr-defined]
    assert _compared("a/time", "a/time").ratio_ci == (1.0, 1.0)
    kinds = {"run": "RunSummary", "host": "HostProfile", "a/time": "Timing", "job": "Ranks", "profile": "Profile"}
    for a, b in itertools.permutations(kinds, 2):
        said = f"not {Path(a).name} ({kinds[a]}) and {Path(b).name} ({kinds[b]})."
        more = " Compare individual ranks." if "job" in (a, b) else ""
        with pytest.raises(WrongUse, match=re.escape(f"timings, {said}{more}") + "$"):
            _compared(a, b)


def test_a_page_of_a_comparison_is_written(tmp_path: Path) -> None:
    a, b = timing(tmp_path, "a", 10.0), timing(tmp_path, "b", 12.0)
    done = called("compare", a, b, "--fail-if-slower", 3, "--html", tmp_path / "c.html")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"Written to {tmp_path / 'c.html'}.")
    assert "b against a" in (tmp_path / "c.html").read_text("utf-8")


def profile(folder: Path, name: str, length: float) -> Path:
    steps = ByHand().step(0, length).op("aten::mm", 0, length / 2)
    return Profile(steps.recording(name=name)).save(folder / name)


@pytest.mark.slow
def test_two_profiles_are_compared(tmp_path: Path) -> None:
    a, b = profile(tmp_path, "old", 1000), profile(tmp_path, "new", 1500)

    done = called("compare", a, b, "--fail-if-slower", 20)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "perfnb · comparison of profiles · new against old"
    assert lines[1].startswith("Slower: a step takes 1.50 × [1.50, 1.50] the baseline's time, 50 % more, not measured")
    assert f"baseline: {a}" in " ".join(lines)
    assert lines[-1].startswith("Failed: slower by more than 20 %")

    found = called("compare", a, b, "--fail-if-slower", 20, "--json")
    value = json.loads(found.stdout)
    assert found.returncode == 1
    assert (value["kind"], value["failed"], value["fail_if_slower_percent"]) == ("comparison of profiles", True, 20)
    sections = {section["key"]: section for section in value["sections"]}
    assert sections["effects"]["rows"][0]["ratio"] == pytest.approx(1.5)
    assert [row[3] for row in sections["ops"]["rows"]] == [pytest.approx(0.25)]

    page = called("compare", a, b, "--html", tmp_path / "c.html")
    assert page.returncode == 0
    assert "new against old" in (tmp_path / "c.html").read_text("utf-8")
