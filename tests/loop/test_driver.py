"""The driver of passes over steps that somebody else runs."""

from __future__ import annotations

import importlib
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.loop.driver import LoopProfiler
from perfnb.profile.profile import Profile
from perfnb.profile.registry import FOR_LOOPS, IN_LOOP
from perfnb.step.budget import Plan
from tests.fake_clock import FakeClock
from tests.loop.loops import Batch, Training, driven

pytestmark = pytest.mark.usefixtures("nothing_left")
#: A window of few steps.
LITTLE: dict[str, Any] = {"steps": 1, "traced": 1, "memory": False, "flops": False}


def run(training: Training, *args: Any, waits: bool = True, recorder: Any = None, **options: Any) -> LoopProfiler:
    """Return a whole training run under a profiler."""
    profiler = LoopProfiler(*args, namespace=lambda: training.namespace, **options)
    profiler.recorder = recorder or profiler.recorder
    for batch in driven(profiler, training.batches, waits=waits):
        training(batch)
    profiler.close()
    return profiler


def hooks() -> int:
    """Global hooks of modules and optimizers that are installed now."""
    module, optimizer = nn.modules.module, importlib.import_module("torch.optim.optimizer")
    return sum(
        len(one)
        for one in (
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        )
    )


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the part of a table that is the same in every run; peaks without what else was alive."""
    if "peak_bytes" in table:
        table = table.assign(peak_bytes=table["peak_bytes"] - table["peak_bytes"].min())
    wanted = [name for name in table.columns if not name.endswith(("_ms", "_us")) and not name.endswith("share")]
    keys = [name for name in ("layer", "op", "direction") if name in wanted]
    return table[wanted].sort_values(keys, ignore_index=True) if keys else table[wanted].sort_index()


def test_the_passes_are_laid_over_the_steps_each_run_once() -> None:
    profiler = run(Training(), at=10, steps=6)
    assert profiler.done == 60
    assert profiler.profiles.at == [10]
    (profile,) = profiler.profiles
    passes = ["timed"] * 6 + ["lead_in"] + ["traced"] * 3 + ["lead_in"] + ["counted"] * 2
    assert list(profile.steps["pass"]) == passes
    assert len(passes) == profiler.length
    assert (profile.steps["samples"] == 32).all()
    assert profile.meta["loop"]["step"] == 10


def test_a_window_agrees_with_profile_step() -> None:
    training, alone = Training(), Training()
    (profile,) = run(training, at=5, steps=6).profiles
    model, optimizer = alone.model, alone.optimizer

    def step(batch: Batch) -> None:
        x, y = batch
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    whole = perfnb.profile_step(step, alone.batches, warmup=5, steps=6)
    for name in ("layers", "ops", "layer_ops"):
        pd.testing.assert_frame_equal(counted(getattr(profile, name)), counted(getattr(whole, name)))
    assert set(profile.phases.index) == set(whole.phases.index)
    owned = [one.allocations.groupby(["category", "layer"], observed=True)["bytes"].sum() for one in (profile, whole)]
    for category in ("parameters", "gradients", "activations", "optimizer_state"):
        assert owned[0][category].to_dict() == owned[1][category].to_dict()


def test_nothing_is_installed_outside_the_windows() -> None:
    training, seen = Training(), []
    handler = signal.getsignal(signal.SIGINT)
    profiler = LoopProfiler(at=10, steps=4)
    for batch in driven(profiler, training.batches):
        training(batch)
        seen.append((hooks(), signal.getsignal(signal.SIGINT) == handler))
    outside = seen[:10] + seen[10 + profiler.length :]
    assert set(outside) == {(0, True)}
    # The timed steps have no hooks either.
    assert [count for count, _ in seen[10:14]] == [0] * 4
    assert all(count > 0 for count, _ in seen[15 : 10 + profiler.length])


def test_early_steps_are_warm_up() -> None:
    (profile,) = run(Training(), at=1, steps=4).profiles
    assert list(profile.steps["pass"])[:6] == ["warmup"] * 2 + ["timed"] * 4


@pytest.mark.parametrize("inside", [2, 5, 7, 9, 11, 12])
def test_a_loop_that_is_left_leaves_nothing(inside: int) -> None:
    training = Training()
    profiler = LoopProfiler(at=3, steps=4)
    for place, batch in enumerate(driven(profiler, training.batches)):
        training(batch)
        if place == inside:
            break
    assert profiler.is_open == (inside >= 3)
    profiler.close()
    profiler.close()
    assert not profiler.is_open
    assert hooks() == 0


def test_a_window_given_up_starts_over() -> None:
    training = Training()
    profiler = LoopProfiler(at=3, steps=4)
    for place, batch in enumerate(driven(profiler, training.batches)):
        training(batch)
        if place == 8:
            profiler.close()  # as before a validation, which is in no step
    assert profiler.profiles.at == [9]


def test_steps_that_do_not_take_place() -> None:
    training = Training(batches=4)
    profiler = LoopProfiler(at=2, steps=3)
    for _ in range(6):  # each window pass meets the end of an epoch
        for batch in driven(profiler, training.batches):
            training(batch)
            training.model.eval()(batch[0])
            training.model.train()
    profiler.close()
    (profile,) = profiler.profiles
    assert profiler.done == 24
    (other,) = run(Training(), at=2, steps=3).profiles
    assert profile.layers.loc["Sequential", "calls"] == 2 * other.layers.loc["model", "calls"]
    assert len(profile.steps) == len(other.steps)
    assert profile.events["step"].nunique() == 3
    assert len(profile.allocations) > 0


@pytest.mark.deep
def test_compiled_code_is_not_counted_and_the_notes_say_so() -> None:
    training = Training()
    training.model.compile(backend="eager")
    (profile,) = run(training, at=10, steps=6).profiles
    assert profile.ops["flops"].isna().all()
    (note,) = [note for note in profile._summary.notes if "running loop" in note]
    assert "other numbers of threads were not tried; FLOPs were not counted, because" in note
    (plain,) = run(Training(), at=10, steps=6).profiles
    assert plain.ops["flops"].notna().any()


def test_saved_profiles_are_loaded_when_asked_for(tmp_path: Path) -> None:
    profiler = run(Training(30), at=[3, 20], save=tmp_path / "runs", **LITTLE)
    assert isinstance(profiler.profiles[-1], Profile)
    assert profiler.profiles[-1].meta["loop"] == {"step": 20, "batches": 1}
    assert len(profiler.profiles[:]) == 2
    assert profiler.profiles.paths == [tmp_path / "runs" / "step_000003", tmp_path / "runs" / "step_000020"]
    assert repr(profiler.profiles) == "<2 profiles, at steps 3, 20>"


def test_the_users_function_is_called_and_its_errors_are_theirs() -> None:
    seen: list[Profile] = []
    run(Training(20), at=3, on_done=seen.append, **LITTLE)
    assert len(seen) == 1

    def fails(profile: Profile) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(Training(20), at=3, on_done=fails, **LITTLE)


def test_an_interrupt_of_perfnbs_own_work_closes_the_window_and_reaches_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiler, closed = LoopProfiler(at=0, every=10, **LITTLE), list[int]()

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(profiler, "_enter", fails)
    monkeypatch.setattr(profiler, "close", lambda: closed.append(profiler.done))
    error: BaseException = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        profiler.begin()
    assert (closed, profiler.planned_at) == ([0], 0)
    error = ValueError("its own")
    with pytest.warns(RuntimeWarning, match="no profile at step 0: ValueError: its own"):
        profiler.begin()
    assert (closed, profiler.planned_at, profiler.next_at) == ([0, 0], 10, 10)


class Recorder:
    """Notes every call."""

    by_batch, batches = False, 1

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []
        self.passes: list[str] = []
        self.open = ""

    def step(self, wall_ns: int, data_ns: int, begin_ns: int) -> None:
        """As `RunRecorder`."""
        self.steps.append((wall_ns, data_ns, begin_ns))
        self.passes.append(self.open)

    def enter(self, pass_name: str) -> None:
        """As `RunRecorder`."""
        self.open = pass_name

    def leave(self) -> None:
        """As `RunRecorder`."""
        self.open = ""


@pytest.mark.parametrize("waits", [True, False])
def test_a_recorder_gets_every_step(waits: bool) -> None:
    recorder = Recorder()
    run(Training(), at=10, steps=3, recorder=recorder, waits=waits)
    assert len(recorder.steps) == 60
    walls, waited, begins = zip(*recorder.steps, strict=True)
    assert all(data <= wall for wall, data in zip(walls, waited, strict=True))
    assert list(begins) == sorted(begins)
    assert all(begin + wall <= later for begin, wall, later in zip(begins, walls, begins[1:], strict=False))
    assert min(waited) >= 0 or not waits
    assert waits or set(waited) == {-1}
    passes = ["timed"] * 3 + ["lead_in"] + ["traced"] * 3 + ["lead_in"] + ["counted"] * 2
    assert recorder.passes == [""] * 10 + passes + [""] * (50 - len(passes))


def test_a_wait_that_ends_without_a_batch_is_part_of_no_step(clock: FakeClock) -> None:
    profiler = LoopProfiler(at=100)
    profiler.recorder = recorder = Recorder()  # type: ignore[assignment]
    profiler.wait()
    clock.pass_exactly(30)
    profiler.skip()
    clock.pass_exactly(500)
    profiler.wait()
    clock.pass_exactly(3)
    profiler.begin()
    clock.pass_exactly(5)
    profiler.end()
    [(wall_ns, data_ns, _)] = recorder.steps
    assert (wall_ns / 1e6, data_ns / 1e6) == (pytest.approx(8, abs=0.01), pytest.approx(3, abs=0.01))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": -1}, "at must be"),
        ({"every": 0}, "every must be"),
        ({"steps": 0}, "steps must be"),
        ({"on_done": 3}, "on_done must be"),
        ({"keep_trace": "yes"}, "keep_trace must be"),
        ({"model": 3}, "model must be"),
        ({"name": 3}, "name must be"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LoopProfiler(**options)


def test_a_second_profiler_does_not_disturb_the_first() -> None:
    training = Training()
    first, second = LoopProfiler(at=3, steps=2), LoopProfiler(at=5, steps=2)

    def train() -> None:
        for batch in driven(first, driven(second, training.batches)):
            training(batch)

    with pytest.warns(RuntimeWarning, match="already being profiled"):
        train()
    assert len(first.profiles) == 1
    assert len(second.profiles) == 0


def test_waits_that_nobody_reports_are_missing(tmp_path: Path) -> None:
    [profile] = run(Training(20), 4, waits=False, **LITTLE).profiles
    profile.save(tmp_path / "saved")
    assert profile.steps["data_ms"].isna().all()
    assert perfnb.load(tmp_path / "saved").steps["data_ms"].isna().all()
    assert "nan" not in str(profile)


class Trial:
    """A lever trial that ends after a given number of steps and records its calls."""

    def __init__(self, calls: list[Any], steps: int) -> None:
        self.calls, self.left, self.finished = calls, steps, False

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self, ms: float) -> None:
        self.calls.append("end")
        assert ms > 0
        self.left -= 1
        self.finished = self.left == 0

    def pause(self) -> None:
        self.calls.append("pause")

    def found(self) -> tuple[list[dict[str, Any]], str]:
        return [{"lever": "x", "left": self.left}], f"x, {self.left} left"


def test_levers_are_tried_after_the_first_window_and_paused_in_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []

    def started(levers: list[str], profile: Profile, names: Any, loader: Any) -> Trial:
        calls.append((levers, type(profile), dict(names()), loader))
        return Trial(calls, 7)

    found = {FOR_LOOPS: lambda wanted: [wanted], IN_LOOP: started}
    monkeypatch.setattr("perfnb.loop.driver.resolve_name", found.__getitem__)
    given: dict[str, Any] = {"namespace": lambda: {"a": 1}, "loader": "loader", "try_levers": "x"}
    profiler = LoopProfiler(at=[4, 11], **given, **LITTLE)
    steps = driven(profiler, range(30))
    for batch in steps:
        if batch == 15:
            break
    # The windows have steps 4 to 6 and 11 to 13, and the trial has those between them and after them.
    assert calls == [
        (["x"], Profile, {"a": 1}, "loader"),
        *["begin", "end"] * 4, "pause", "begin", "end", "begin",
    ]  # fmt: skip
    recorder = profiler.recorder
    assert recorder.tried == [{"lever": "x", "left": 3}]
    assert recorder.recorded().windows[:, :2].tolist() == [[4, 3], [7, 4], [11, 3], [14, 1]]
    assert capsys.readouterr().err == ""

    del calls[:]
    for batch in steps:
        if batch == 20:
            break
    assert calls == ["end", "begin", "end"]
    assert profiler.trial is None
    assert recorder.tried == [{"lever": "x", "left": 0}]
    assert capsys.readouterr().err == "perfnb: x, 0 left\n"
    assert recorder.recorded().windows[-1, :2].tolist() == [14, 3]
    steps.close()
    profiler.close()
    assert recorder.recorded().facts["tried"] == [{"lever": "x", "left": profiler.done - 17}]


def test_a_loop_that_is_over_pauses_its_trial(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []
    profiler = LoopProfiler(at=100)
    for leave in (profiler.skip, profiler.close):
        profiler.trial = Trial(calls, 3)
        profiler.begin()
        profiler.end()
        leave()
        assert calls == ["begin", "end", "pause"]
        assert profiler.recorder.tried == [{"lever": "x", "left": 2}]
        assert profiler.recorder._pass is None
        calls.clear()
    profiler.trial.finished = True  # as a failure in it does
    profiler.close()
    assert profiler.trial is None
    assert capsys.readouterr().err == "perfnb: x, 2 left\n"


@pytest.mark.parametrize(
    ("done", "left", "window", "next_at"),
    [
        (5, None, (0, 3), 5),
        (5, 5, (0, 3), 5),  # the three timed steps, a lead-in and a traced one
        (5, 4, (0, 2), 5),
        (5, 3, (0, 1), 5),
        (5, 2, None, 7),
        (5, 0, None, 6),
        (2, 6, (1, 3), 5),  # a step of warm-up as well
        (2, 5, (1, 2), 5),
    ],
)
def test_a_window_is_shortened_or_postponed_if_the_loop_ends_before_it(
    done: int, left: int | None, window: tuple[int, int] | None, next_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[int, int | None]]()

    def passes(plan: Plan, **_: Any) -> Any:
        asked.append((plan.warmup or 0, plan.steps))
        return (turn for turn in ["a turn"])

    monkeypatch.setattr("perfnb.loop.driver.loop_passes", passes)
    profiler = LoopProfiler(at=5, steps=3, traced=1, memory=False, flops=False, left=lambda: left)
    profiler.done = done
    assert profiler._open() == (window is not None)
    assert asked == [window] * (window is not None)
    assert profiler.next_at == next_at
    profiler.close()


def test_the_first_steps_become_one_unless_there_is_a_profile_of_them() -> None:
    profiler = LoopProfiler(at=3, **LITTLE)
    assert (profiler.join_first(), profiler.done) == (1, 0)
    for _ in range(2):
        profiler.begin()
        profiler.end()
    assert (profiler.join_first(), profiler.done, profiler.next_at) == (2, 1, 3)
    assert profiler.recorder.batches == 2
    for _ in range(5):
        profiler.begin()
        profiler.end()
    assert len(profiler.profiles) == 1
    assert (profiler.join_first(), profiler.done) == (1, 6)


def test_a_profile_says_whose_loop_and_steps_it_is_of() -> None:
    for trainer, by_batch, facts in (("", False, {}), ("lightning", True, {"trainer": "lightning", "by_batch": True})):
        profiler = LoopProfiler(at=1, trainer=trainer, **LITTLE)
        profiler.recorder.by_batch = by_batch
        list(driven(profiler, range(9)))
        assert profiler.profiles[0].meta["loop"] == {"step": 1, "batches": 1, **facts}


@pytest.mark.slow
def test_training_is_the_same_with_and_without() -> None:
    plain, profiled = Training(), Training()
    torch.manual_seed(11)
    for batch in plain.batches:
        plain(batch)
    torch.manual_seed(11)
    profiler = run(profiled, at=[7, 30], steps=4)
    assert len(profiler.profiles) == 2
    assert all(torch.equal(a, b) for a, b in zip(plain.weights(), profiled.weights(), strict=True))


def test_a_failure_of_perfnb_ends_the_window_and_not_the_loop() -> None:
    training = Training()
    profiler = LoopProfiler(at=10, every=30, steps=2)
    steps = driven(profiler, training.batches)
    for _ in range(10):
        training(next(steps))
    with torch.profiler.profile():
        with pytest.warns(RuntimeWarning, match="no profile at step 10: NestedProfilerError"):
            next(steps)
        training(next(steps))
    for batch in steps:
        training(batch)
    assert profiler.done == 60
    assert profiler.profiles.at == [40]
