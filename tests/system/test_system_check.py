"""The machine that the tests run on, checked; and how checks are displayed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import perfnb
from perfnb import quantities as fmt
from perfnb.bench.paired_times import paired_times
from perfnb.draw.document import Table
from perfnb.system.host import OTHERS
from perfnb.system.resolution import Resolution, _small_step, find_resolution
from perfnb.system.system import COLUMNS, SystemCheck
from perfnb.system.view import RESULTS, system_document

pytestmark = pytest.mark.usefixtures("nothing_left")


def checks(*rows: tuple[str, str, str]) -> SystemCheck:
    """Return checks from name, found and verdict."""
    full = [(name, found, f"{name} expected", verdict, f"{name} why", f"{name} how") for name, found, verdict in rows]
    return SystemCheck(pd.DataFrame(full, columns=list(COLUMNS)))


def test_this_machine_gets_a_row_for_each_check(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 1000)
    check = perfnb.system_check(tmp_path)

    table = check.checks
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 21
    assert set(table["verdict"]) <= set(RESULTS)
    unknown = table[table["verdict"] == "unknown"]
    assert unknown["found"].str.contains("could not be read").all()
    read = table.set_index("check").loc["read test", "found"]
    assert "1 file and a new temporary file" in read
    assert str(tmp_path) in read
    assert os.listdir(tmp_path) == ["data"]
    assert repr(check).startswith("<perfnb.SystemCheck: ")
    table.loc[:, "found"] = "changed"
    assert not (check.checks["found"] == "changed").any()


def test_nothing_is_written_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    active = [True]

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if active and event == "open" and isinstance(arguments[2], int) and arguments[2] & writes:
            written.append(str(arguments[0]))
        elif active and event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.utime", "os.truncate"):
            written.append(f"{event} {arguments[0]}")

    sys.addaudithook(audit)  # which stays, but listens no longer
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    perfnb.system_check(tmp_path)
    active.clear()

    assert [path for path in written if str(tmp_path) not in path] == []


def test_data_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no '.*missing': pass the file or folder"):
        perfnb.system_check(tmp_path / "missing")


def test_what_asks_for_attention_comes_first_with_its_reasons() -> None:
    shown = str(
        checks(("fine", "good", "ok"), ("dark", "could not be read: x", "unknown"), ("bad", "slow", "attention"))
    )

    assert shown.splitlines()[1] == "1 of 3 checks needs attention, 1 could not be read: bad"
    assert shown.index("bad: slow") < shown.index("bad how") < shown.index("dark") < shown.index("fine")
    assert "fine why" not in shown


def test_a_busy_machine_says_so_at_first_glance() -> None:
    verdict = checks(("bad", "slow", "attention"), (OTHERS, "187 % of 200 %", "attention"))._document().verdict
    assert verdict.sentence == (
        "The machine is busy: other processes use 187 % of 200 % CPU; 2 of 2 checks need attention"
    )
    assert verdict.next == f"{OTHERS} how"
    calm = checks(("a", "x", "info"), (OTHERS, "0 % of 200 %", "ok"))._document().verdict
    assert (calm.state, calm.sentence) == ("good", "None of 2 checks needs attention")


def test_checks_that_found_the_same_stand_in_one_row() -> None:
    shown = checks(("one", "no GPU", "info"), ("two", "no GPU", "info"), ("three", "no GPU", "ok"))
    table = shown._document().sections[0]
    assert isinstance(table, Table)
    assert table.rows == [("one, two", "for information"), ("three", "as expected")]
    assert table.details == ["no GPU", "no GPU"]
    alike = checks(("GPU driver", "none", "info"), ("GPU ECC", "none", "info"), ("other", "x", "info"))
    table = alike._document().sections[0]
    assert isinstance(table, Table)
    assert [name for name, _ in table.rows] == ["GPU driver, GPU ECC", "other"]
    assert table.details == ["none", "x (expected: other expected)"]


def resolution(ratio: float, spread: float, pairs: int = 60) -> Resolution:
    """Return a step of 10 ms compared with one that takes so many times as long."""
    scatter = [1 + spread * (-1) ** place * (1 + place % 5) for place in range(pairs)]
    times = paired_times(
        [10.0] * pairs,
        [10.0 * ratio * noise for noise in scatter],
        equal_within=0.02,
        **{"a_name": "a step", "b_name": "itself", "planned": pairs, "needed": pairs},
    )
    return Resolution(**vars(times))


def test_what_can_be_resolved_comes_first() -> None:
    found = resolution(1.0, 0.001)
    ten, sixty = (found.detectable_in(seconds) for seconds in (10, 60))
    busy = checks((OTHERS, "187 % of 200 %", "attention")).checks
    shown = system_document(busy, found)
    least = f"{fmt.share(ten)} can be resolved in 10 s, and of {fmt.share(sixty)} in 60 s"
    assert shown.verdict.sentence == f"A difference of {least}"
    assert shown.verdict.why.startswith("The machine is busy: other processes use 187 % of 200 % CPU")
    assert shown.verdict.state == "open"
    assert [type(part).__name__ for part in shown.sections] == ["Effects", "Strip", "Table", "Cards", "Table"]
    assert shown.figures[0].value == found.noise_floor


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        (resolution(1.2, 0.001), "bad", "A step compared with itself looks slower: a false positive"),
        (resolution(1.0, 0.15, 8), "open", "although the machine is too noisy at the moment for a verdict"),
        (resolution(1.0, 0.001, 1), "open", "Too few pairs to tell which differences can be resolved"),
    ],
)
def test_a_resolution_that_cannot_be_trusted_says_so(found: Resolution, state: str, words: str) -> None:
    verdict = found._document().verdict
    assert verdict.state == state
    assert words in verdict.sentence


def test_a_resolution_with_one_unknown_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolution(1.0, 0.001)
    monkeypatch.setattr(Resolution, "detectable_in", lambda self, seconds: 0.01 if seconds == 60 else None)
    assert found._document().verdict.sentence == "Too few pairs to tell which differences can be resolved"


@pytest.mark.parametrize(("switches", "says"), [(3, "3 times in 120 steps."), (1, "1 time in 120 steps."), (0, "")])
def test_a_preempted_step_is_reported(switches: int, says: str) -> None:
    found = Resolution(**{**vars(resolution(1.0, 0.001)), "noise": {"involuntary_switches": switches}})
    notes = found._document().notes
    assert [note for note in notes if "preempted" in note] == [f"The system preempted the process {says}"] * bool(says)


@pytest.mark.parametrize("asked", [False, True, "a step"])
def test_the_resolution_is_measured_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Any) -> None:
    def step() -> None:
        pass

    told: list[Any] = []
    monkeypatch.setattr("perfnb.system.read.read_system", lambda path: {})
    found = resolution(1.0, 0.001)
    monkeypatch.setattr("perfnb.system.system.find_resolution", lambda *given: (told.append(given), found)[1])
    check = perfnb.system_check(tmp_path, resolution=step if asked == "a step" else asked, budget_s=2.5)
    assert check.resolution is (found if asked else None)
    assert told == {False: [], True: [(None, 2.5)], "a step": [(step, 2.5)]}[asked]


@pytest.mark.parametrize("asked", [1, "yes", None])
def test_a_resolution_that_is_not_a_step_is_refused(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(TypeError, match=f"^resolution must be True, False or a step, not {asked!r}"):
        perfnb.system_check(tmp_path, resolution=asked)


def test_a_step_is_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    times, told = resolution(1.0, 0.001), list[Any]()

    def compared(a: Any, b: Any, *rest: Any, budget_s: float) -> Any:
        told.append((a, b, budget_s))
        return times

    monkeypatch.setattr("perfnb.system.resolution.time_pairs", compared)
    monkeypatch.setattr("perfnb.system.resolution._small_step", lambda: str)
    assert find_resolution(None, 3.0).ratio == times.ratio
    assert find_resolution(list, 4.0).noise_floor == times.noise_floor
    assert told == [(str, str, 3.0), (list, list, 4.0)]


@pytest.mark.slow
def test_the_step_that_is_compared_trains_and_leaves_the_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    loss = torch.nn.functional.cross_entropy

    def seen(*given: Any) -> torch.Tensor:
        found = loss(*given)
        losses.append(found.item())
        return found

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", seen)
    before = torch.random.get_rng_state()
    step = _small_step()
    assert torch.equal(torch.random.get_rng_state(), before)
    for _ in range(30):
        step()
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_the_step_that_is_compared_is_one_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []

    class Optimizer:
        def __init__(self, parameters: Any, lr: float) -> None:
            self._parameters = list(parameters)

        def zero_grad(self) -> None:
            did.append("zero")

        def step(self) -> None:
            did.append("step" if all(one.grad is not None for one in self._parameters) else "no gradients")

    monkeypatch.setattr(torch.optim, "SGD", Optimizer)  # the first step of torch's own loads its compiler
    before = torch.random.get_rng_state()
    step = _small_step()
    assert torch.equal(torch.random.get_rng_state(), before)
    step()
    step()
    assert did == ["zero", "step"] * 2
