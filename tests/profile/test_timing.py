"""Which disturbances of the steps are reported, and what the view of step times says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from perfnb.errors import RecordingError
from perfnb.profile.timing import Timing, load_timing, noise_facts, noise_sentences
from perfnb.profile.timing_view import timing_document
from perfnb.stats.step_times import StepTimes


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ({"gc_share": 0.005}, ""),
        ({"gc_share": 0.0051}, "garbage collection took"),
        ({"load_before": 2.0, "cpus": 4}, ""),
        ({"load_before": 2.04, "cpus": 4}, "the machine was already busy (load 2.0 on 4 CPUs)"),
        ({"load_before": 9.0}, ""),
        ({"cpus": 4}, ""),
        ({"cpu_mhz_before": 2000, "cpu_mhz_after": 2190}, ""),
        ({"cpu_mhz_before": 2000, "cpu_mhz_after": 2201}, "the CPU clock changed from 2,000 to 2,201 MHz"),
        ({"cpu_mhz_before": 2000, "cpu_mhz_after": 1810}, ""),
        ({"cpu_mhz_before": 2000, "cpu_mhz_after": 1799}, "the CPU clock changed from 2,000 to 1,799 MHz"),
        ({"cpu_mhz_before": 2000}, ""),
        ({"cpu_mhz_after": 2000}, ""),
        ({"throttled_periods": 0, "throttled_ms": 0.0}, ""),
        ({"throttled_periods": 1, "throttled_ms": 20.0}, "the CPU limit paused the process for 20.0 ms"),
        ({"gpu_throttle_reasons": []}, ""),
        ({"gpu_throttle_reasons": ["heat", "power"]}, "the GPU was throttled: heat, power"),
    ],
)
def test_a_disturbance_is_reported_above_its_limit(noise: dict[str, Any], words: str) -> None:
    facts = noise_facts(noise)
    assert len(facts) == bool(words)
    assert "".join(facts).startswith(words)
    assert noise_sentences(noise) == [f"{fact[0].upper()}{fact[1:]}." for fact in facts]


def view(**changes: Any) -> Any:
    return timing_document(StepTimes(**{"samples_ms": tuple(float(ms) for ms in range(1, 21)), **changes}))


def test_the_verdict_is_open_where_steps_are_missing_or_were_not_steady() -> None:
    def verdict(**changes: Any) -> tuple[str, bool, bool]:
        found = view(**changes).verdict
        return found.state, "steady state" in found.why, "budget ended" in found.why

    assert verdict() == verdict(steady=True) == verdict(steady=None, wanted=20) == ("good", False, False)
    assert verdict(steady=False) == ("open", True, False)
    assert verdict(wanted=21) == ("open", False, True)
    assert verdict(steady=False, wanted=21) == ("open", True, True)
    assert verdict(wanted=40, block=2) == ("good", False, False)  # 20 blocks of two steps
    assert view(wanted=21).verdict.next == "Raise budget_s."
    assert view(samples_ms=(), wanted=20).verdict.state == "none"


def test_two_times_are_drawn_and_one_is_not() -> None:
    assert view(samples_ms=(1.0,)).sections == ()
    strip, series = Timing((1.0, 3.0))._document().sections
    assert (strip.title, series.title) == ("Every step", "In order")
    assert list(series.at) == [1, 2]
    assert view(samples_ms=(1.0, 3.0), block=10).sections[0].title == "Every block of 10 steps"


def test_a_step_time_has_the_highest_quantile_that_is_known() -> None:
    def labels(count: int) -> list[str]:
        return [figure.label for figure in view(samples_ms=tuple(map(float, range(1, count + 1)))).figures]

    timing = StepTimes(tuple(map(float, range(1, 21))))
    known = [share for share in (0.99, 0.95, 0.9) if timing.quantile_ms(share) is not None]
    assert labels(20)[1:] == [f"p{share * 100:.0f}" for share in known[:1]]
    assert labels(5000)[1:] == ["p99"]
    assert labels(1) == ["step"]
    assert labels(0) == []


def test_the_warm_up_is_described_by_what_is_known() -> None:
    assert view().facts == ()
    assert view(warmup_ms=(1.0,), steady=True).facts[0].startswith("steady after 1 warm-up step")
    assert view(warmup_ms=(1.0, 2.0), steady=False).facts[0].startswith("not steady after 2 warm-up steps")
    assert view(warmup_ms=(1.0, 2.0)).facts[0].startswith("too few steps")


def test_warm_up_and_timed_steps_are_distinguished_when_saved(tmp_path: Path) -> None:
    timing = Timing((1.0, 2.0, 3.0), 4, 12, (9.0, 8.0), steady=False, wanted=5, block=2)
    again = load_timing(timing.save(tmp_path / "t"))
    assert again == timing
    assert (again.samples_ms, again.warmup_ms) == ((1.0, 2.0, 3.0), (9.0, 8.0))


def test_step_times_that_are_saved_again_have_their_first_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.profile.timing.origin", lambda: {"host": "first"})
    again = load_timing(Timing((1.0, 2.0, 3.0), 4).save(tmp_path / "a"))
    monkeypatch.setattr("perfnb.profile.timing.origin", lambda: {"host": "second"})
    facts, copied = (
        json.loads((path / "timing.json").read_text()) for path in (tmp_path / "a", again.save(tmp_path / "b"))
    )
    assert facts["outcome"] == copied["outcome"]
    assert facts["outcome"]["host"] == "first"
    del facts["outcome"]  # as an earlier version saved it
    (tmp_path / "a" / "timing.json").write_text(json.dumps(facts))
    outcome = load_timing(tmp_path / "a")._first_outcome
    assert outcome is not None
    assert (outcome.step_ms, outcome.host) == (2.0, None)


def test_throughput_and_outliers_are_shown_if_they_are_known() -> None:
    found = {figure.label: figure.value for figure in view(batch_size=21, samples=420).figures}
    assert found["throughput"] == pytest.approx(StepTimes(tuple(map(float, range(1, 21))), 21, 420).throughput_per_s)
    steady = (1.0,) * 10 + (1.1,) * 10
    assert view(samples_ms=steady).facts == ()
    assert view(samples_ms=(*steady, 9.0)).facts == ("1 outlier among 21 steps: 1 high severe",)
    assert view(samples_ms=(*steady, 9.0), block=3).facts == ("1 outlier among 21 blocks: 1 high severe",)


def test_damaged_step_times_are_refused(tmp_path: Path) -> None:
    path = Timing((1.0, 2.0)).save(tmp_path / "t")
    (file,) = path.glob("*.parquet")
    pd.read_parquet(file).assign(wall_ms=-1.0).to_parquet(file)
    with pytest.raises(RecordingError):
        load_timing(path)
