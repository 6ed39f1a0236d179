"""A trainer's step and its loader for a trial of levers, without a training."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from perfnb.integrations import trainer_levers, trainer_profiler
from perfnb.integrations.patches import replaced
from perfnb.integrations.trainer_levers import TrainerStep, _loader, _refusal, _words, tried_facts, try_on
from perfnb.integrations.trainer_profiler import TrainerProfiler
from perfnb.remedies.verdicts import LeverTrial

#: A linear layer of 10 × 5 weights and 5 biases in float32.
STATE_BYTES = 4 * 55


def made(loader: Any = None, batches: Any = (("a",), ("b",)), **changed: Any) -> TrainerStep:
    model = nn.Linear(10, 5)
    values: dict[str, Any] = {
        "run": lambda given: None,
        "batches": batches,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": loader,
        "silent": nullcontext(),
        "prepared": lambda batch: batch,
        "trainer": "transformers",
        "unsettable": (),
        "left": 7,
    }
    return TrainerStep(**values | changed)


def available(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=count))


def test_three_copies_of_the_state_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 3 * STATE_BYTES)
    assert _refusal(made()) == ""
    available(monkeypatch, 3 * STATE_BYTES - 1)
    assert _refusal(made()) == "copies of the training state need 660 B on cpu, which has 659 B left"


def test_buffers_and_what_only_the_optimizer_updates_need_memory_but_shared_tensors_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, other = nn.Linear(10, 5), nn.Parameter(torch.zeros(7, dtype=torch.float64))
    model.register_buffer("seen", torch.zeros(3, dtype=torch.float16))
    step = made(model=model, optimizer=torch.optim.SGD([*model.parameters(), other], lr=0.1))

    needed = 3 * (STATE_BYTES + 3 * 2 + 7 * 8)
    available(monkeypatch, needed)
    assert _refusal(step) == ""
    available(monkeypatch, needed - 1)
    assert f"need {needed} B on cpu, which has {needed - 1} B left" in _refusal(step)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (None, ""),
        ({"rank": 0, "world_size": 1}, ""),
        ({"rank": 0, "world_size": 2}, "the job has several ranks, which would have to switch levers together"),
    ],
)
def test_only_a_job_with_several_ranks_is_refused(place: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_levers, "place_in_job", lambda: place)

    assert _refusal(made()) == said


def test_a_step_without_batches_is_refused_and_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_levers, "run_trials", lambda *_, **__: pytest.fail("it was tried"))
    profile: Any = SimpleNamespace()

    assert try_on(made(batches=()), profile, "auto", 10.0, "x") == "the trainer has not used any batch yet."


def rows(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


def drawn(loader: DataLoader[Any] | None) -> list[list[int]]:
    assert loader is not None
    return [batch[0].tolist() for batch in loader]


def test_the_loader_of_a_trial_has_the_rows_in_order_in_full_batches() -> None:
    assert drawn(_loader(made(DataLoader(rows(7), batch_size=3, shuffle=True)))) == [[0, 1, 2], [3, 4, 5]]
    assert drawn(_loader(made(DataLoader(rows(6), batch_size=3)))) == [[0, 1, 2], [3, 4, 5]]
    assert drawn(_loader(made(DataLoader(rows(2), batch_size=3)))) == []


def test_the_loader_of_a_trial_has_a_limited_number_of_batches() -> None:
    assert len(drawn(_loader(made(DataLoader(rows(130), batch_size=2))))) == 64
    assert len(drawn(_loader(made(DataLoader(rows(128), batch_size=2))))) == 64
    assert len(drawn(_loader(made(DataLoader(rows(126), batch_size=2))))) == 63


def test_the_batch_size_may_be_that_of_the_sampler() -> None:
    data = rows(6)
    sampler = BatchSampler(RandomSampler(data), batch_size=2, drop_last=False)
    assert drawn(_loader(made(DataLoader(data, batch_sampler=sampler)))) == [[0, 1], [2, 3], [4, 5]]
    assert _loader(made(DataLoader(data, batch_sampler=[[0, 1], [2]]))) is None  # of no one size


def test_the_loader_of_a_trial_collates_as_the_run_does() -> None:
    def sums(samples: Any) -> int:
        return sum(int(sample[0]) for sample in samples)

    def prepare(worker: int) -> None:
        pass

    loader = _loader(made(DataLoader(rows(4), batch_size=2, collate_fn=sums, worker_init_fn=prepare)))
    assert loader is not None
    assert list(loader) == [1, 5]
    assert loader.worker_init_fn is prepare


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_streams_and_steps_of_several_batches_have_no_loader_for_a_trial() -> None:
    loader = DataLoader(rows(6), batch_size=3)
    assert _loader(made(loader, batches=[["a"], ["b", "c"]])) is None
    assert _loader(made(DataLoader(Stream(), batch_size=2))) is None
    assert _loader(made(None)) is None


class Tried:
    """Stands in for the trials and keeps what it was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.error = error
        monkeypatch.setattr(trainer_levers, "run_trials", self)
        monkeypatch.setattr(trainer_levers, "bounds_of", lambda findings: findings)

    def __call__(self, run: Any, batches: Any, request: Any, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.run, self.batches, self.request, self.options = run, batches, request, options
        return self


@pytest.mark.parametrize(
    ("levers", "bounds", "loads"),
    [
        ("auto", {"input pipeline": 3.0}, True),
        ("auto", {"launch overhead": 3.0}, False),
        (["loader_workers"], {}, True),
        (["threads"], {"input pipeline": 3.0}, False),
    ],
)
def test_a_loader_is_tried_only_if_it_was_asked_for_or_holds_up_the_step(
    levers: Any, bounds: dict[str, float], loads: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tried, ran = Tried(monkeypatch), list[Any]()
    profile: Any = SimpleNamespace(findings=bounds)
    step = made(DataLoader(rows(4), batch_size=2), run=ran.append, prepared=lambda batch: f"prepared {batch}")

    assert try_on(step, profile, levers, 10.0, "fit") is tried

    tried.run("a batch")
    assert (tried.options["bounds"], tried.options["name"]) == (bounds, "fit")
    assert tried.options["namespace"] == {"model": step.model, "optimizer": step.optimizer}
    assert tried.request.budget_s == 10.0
    assert "for 12.0 s at most" in capsys.readouterr().err
    if loads:
        assert ran == [["prepared a batch"]]
        assert tried.options["loader"] is tried.batches
        assert len(tried.batches) == 2
    else:
        assert ran == ["a batch"]
        assert tried.options["loader"] is None
        assert tried.batches == [("a",), ("b",)]


def test_a_trial_that_fails_is_told_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Tried(monkeypatch, ValueError("it broke\nand more"))
    profile: Any = SimpleNamespace(findings={})

    assert try_on(made(), profile, ["threads"], 1.0, "fit") == "ValueError: it broke"


def test_a_lever_has_the_words_of_its_trainer_unless_it_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_levers, "workers_for", lambda subject: 5)

    assert _words(made(), "loader_workers", None) == ["TrainingArguments(dataloader_num_workers=5)"]
    assert _words(made(unsettable=["autocast"]), "loader_workers", None) is not None
    assert _words(made(unsettable=["loader_workers"]), "loader_workers", None) is None
    assert _words(made(), "threads", None) is None  # no setting of this trainer


def test_the_levers_of_a_run_keep_their_reasons_and_the_combination_if_there_is_one() -> None:
    def found(*kept: str) -> Any:
        trials = [
            LeverTrial("threads", "faster", 0.8, (0.7, 0.9), 2.0),
            LeverTrial("gc_freeze", "inconclusive", why_not="too noisy", notes=["seen once"]),
            LeverTrial("compile", "not tried", why_not="no compiler"),
        ]
        both = LeverTrial("threads and gc_freeze", "faster", 0.75, (0.7, 0.8), 2.5)
        return SimpleNamespace(best=kept, figures=SimpleNamespace(trials=trials, confirmed=both))

    alone = tried_facts(found("threads"), 10)
    assert [(one["lever"], one["kept"], one["why_not"]) for one in alone] == [
        ("threads", True, ""),
        ("gc_freeze", False, "too noisy; seen once"),
    ]
    assert [one["left"] for one in alone] == [10, 10]
    together = tried_facts(found("threads", "gc_freeze"), None)
    assert [(one["lever"], one["kept"]) for one in together] == [
        ("threads", True),
        ("gc_freeze", True),
        ("threads and gc_freeze", True),
    ]


class Owner:
    word = "of the class"


def test_a_replaced_attribute_is_put_back_where_it_was() -> None:
    owner = Owner()
    with replaced(owner, "word", "mine"):
        assert owner.word == "mine"
    assert owner.word == "of the class"
    assert vars(owner) == {}

    owner.word = "its own"
    with replaced(owner, "word", "mine"):
        assert owner.word == "mine"
    assert vars(owner) == {"word": "its own"}


@pytest.mark.parametrize("before", [{}, {"word": "its own"}])
def test_what_others_have_replaced_in_the_meantime_stays(before: dict[str, str]) -> None:
    owner = Owner()
    vars(owner).update(before)
    with replaced(owner, "word", "mine"):
        owner.word = "theirs"
    assert owner.word == "theirs"


def test_a_replaced_attribute_is_put_back_after_a_failure() -> None:
    owner = Owner()
    with pytest.raises(ValueError, match="broken"), replaced(owner, "word", "mine"):
        raise ValueError("broken")
    assert vars(owner) == {}


@pytest.mark.parametrize("wrong", [1, 0, None, 2.5])
def test_try_levers_must_be_a_switch_or_names(wrong: Any) -> None:
    with pytest.raises(TypeError, match="try_levers must be True, False or a list of levers, not"):
        TrainerProfiler(try_levers=wrong)


@pytest.mark.parametrize(
    ("wanted", "levers"),
    [(True, "auto"), (False, False), ("threads", "threads"), (("threads", "compile"), ["threads", "compile"])],
)
def test_a_callback_for_another_process_has_the_same_options(wanted: Any, levers: Any) -> None:
    profiler = TrainerProfiler(at=iter([3, 5]), every=7, try_levers=wanted, levers_budget_s=9.0, steps=2)

    options = profiler.__getstate__()
    assert (options["try_levers"], options["levers_budget_s"], options["log"]) == (levers, 9.0, False)
    assert (options["at"], options["every"], options["steps"]) == ((3, 5), 7, 2)
    other = TrainerProfiler.__new__(TrainerProfiler)
    other.__setstate__(options)
    assert other.__getstate__() == options


def test_wrong_options_of_a_callback_are_named() -> None:
    with pytest.raises(TypeError, match="ProfileCallback has no option 'stepz'"):
        TrainerProfiler(stepz=1)
    with pytest.raises(ValueError, match="levers_budget_s"):
        TrainerProfiler(levers_budget_s=-1.0)
    with pytest.raises(ValueError, match="Did you mean threads"):
        TrainerProfiler(try_levers=["thread"])


def test_a_profiler_without_a_run_has_no_results() -> None:
    profiler = TrainerProfiler()

    assert list(profiler.profiles) == []
    assert profiler.run is None
    assert profiler.levers is None


class Fitting(SimpleNamespace):
    """What `_left` asks Lightning's trainer: in the third of ten epochs, 4 of 20 batches are done."""

    def __init__(self, **changed: Any) -> None:
        values = {
            "enable_validation": False,
            "check_val_every_n_epoch": 1,
            "current_epoch": 2,
            "max_epochs": 10,
            "max_steps": -1,
            "global_step": 44,
            "num_training_batches": 20,
            "accumulate_grad_batches": 1,
            "val_check_batch": 20,
        }
        progress = SimpleNamespace(current=SimpleNamespace(ready=4))
        loop = SimpleNamespace(batch_progress=progress, total_batch_idx=43)
        super().__init__(**values | changed, fit_loop=SimpleNamespace(epoch_loop=loop))


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ({}, None),  # another epoch follows
        ({"max_epochs": 3}, 16),
        ({"max_epochs": 4}, None),
        ({"max_epochs": 3, "accumulate_grad_batches": 3}, 6),
        ({"max_epochs": 3, "num_training_batches": float("inf")}, None),
        ({"max_epochs": -1}, None),
        ({"max_epochs": None}, None),
        ({"max_steps": 50}, 6),
        ({"max_steps": 50, "max_epochs": 3}, 6),
        ({"max_steps": 99, "max_epochs": 3}, 16),
        ({"enable_validation": True}, 16),
        ({"enable_validation": True, "val_check_batch": 5}, 1),
        ({"enable_validation": True, "val_check_batch": 4}, 4),
        ({"enable_validation": True, "val_check_batch": float("inf")}, None),
        ({"enable_validation": True, "val_check_batch": None}, None),
        ({"enable_validation": True, "check_val_every_n_epoch": 2}, None),
        ({"enable_validation": True, "check_val_every_n_epoch": 3}, 16),
        ({"enable_validation": True, "check_val_every_n_epoch": None, "val_check_batch": 15}, 1),  # 44 of all batches
    ],
)
def test_the_steps_before_a_validation_or_the_end_in_lightning(changed: dict[str, Any], left: int | None) -> None:
    from perfnb.integrations.lightning import _left

    assert _left(Fitting(**changed)) == left


@pytest.mark.parametrize(("planned", "left"), [(100, 56), (44, 0), (0, -44), (float("inf"), None), (-1, None)])
def test_the_steps_that_are_left_in_lightning(planned: float, left: int | None) -> None:
    from perfnb.integrations.lightning import _steps_left

    trainer = SimpleNamespace(estimated_stepping_batches=planned, global_step=44)
    assert _steps_left(trainer) == left


def test_one_optimizer_has_another_name_than_several() -> None:
    from perfnb.integrations.lightning import _optimizers

    assert _optimizers(SimpleNamespace(optimizers=["a"])) == {"optimizer": "a"}
    assert _optimizers(SimpleNamespace(optimizers=["a", "b"])) == {"optimizers": ["a", "b"]}


@pytest.mark.parametrize(
    ("strategy", "every", "loader", "left"),
    [
        ("no", 10, range(9), 56),
        ("steps", 10, range(9), 6),
        ("steps", 22, range(9), 22),
        ("steps", 0, range(9), 56),
        ("steps", 500, range(9), 56),
        ("epoch", 10, range(99), 6),  # 50 steps of two batches
        ("epoch", 10, range(9), 1),
        ("epoch", 10, iter("endless"), 56),
        (SimpleNamespace(value="steps"), 10, range(9), 6),
    ],
)
def test_the_steps_before_an_evaluation_in_transformers(strategy: Any, every: int, loader: Any, left: int) -> None:
    from perfnb.integrations.transformers import _left

    args = SimpleNamespace(eval_strategy=strategy, gradient_accumulation_steps=2)
    state = SimpleNamespace(max_steps=100, global_step=44, eval_steps=every)
    assert _left(args, state, loader) == left


class State:
    """The counters and the scaler of an accelerator, and what a trainer of transformers did."""

    def __init__(self) -> None:
        self.sync_gradients, self.did = True, list[Any]()

    def _set_sync_gradients(self, on: bool) -> None:
        self.sync_gradients = on

    def does(self, name: str, answer: Any = None) -> Any:
        return lambda *given, **_: self.did.append((name, *given)) or answer


def in_transformers(state: State, **changed: Any) -> Any:
    """Return a trainer whose objects tell what they are asked for."""

    @contextmanager
    def no_sync(model: Any) -> Iterator[None]:
        state.did.append("apart")
        yield

    accelerator = SimpleNamespace(
        gradient_state=state, no_sync=no_sync, clip_grad_norm_=state.does("clip"), optimizer_step_was_skipped=False
    )

    def training_step(model: Any, batch: Any, items: int) -> int:
        state.did.append((batch, items, state.sync_gradients))
        return batch * 10

    values = {
        "model_wrapped": SimpleNamespace(parameters=lambda: "weights", zero_grad=state.does("zero")),
        "optimizer": SimpleNamespace(
            step=state.does("step"), optimizer=torch.optim.AdamW([nn.Parameter(torch.ones(1))])
        ),
        "lr_scheduler": SimpleNamespace(step=state.does("schedule")),
        "accelerator": accelerator,
        "args": SimpleNamespace(device="cpu", max_grad_norm=1.0),
        "training_step": training_step,
        "callback_handler": SimpleNamespace(train_dataloader=None, call_event=state.does("event")),
        "current_gradient_accumulation_steps": 9,
        "log": state.does("log"),
        "state": SimpleNamespace(max_steps=100, global_step=44),
    }
    return SimpleNamespace(**values | changed)


def step_in_transformers(trainer: Any, seen: Any = ([1], [1, 2], [3, 4])) -> TrainerStep:
    from perfnb.integrations.transformers import _step

    return _step(trainer, lambda batches, count, device: (list(batches), count * 100), seen)


PARTS = ["apart", (1, 200, False), (2, 200, True)]


@pytest.mark.parametrize(
    ("norm", "scaler", "scheduler", "ends"),
    [
        (1.0, False, None, [("clip", "weights", 1.0), ("step",), ("schedule",), ("zero",)]),
        (0.0, False, None, [("step",), ("schedule",), ("zero",)]),
        (None, True, None, [("step",), ("zero",)]),  # the scaler has skipped the step
        (0.0, False, "plateau", [("step",), ("zero",)]),
    ],
)
def test_a_step_of_transformers_is_that_of_its_loop(
    norm: float | None, scaler: bool, scheduler: str | None, ends: list[Any]
) -> None:
    state = State()
    trainer = in_transformers(state, args=SimpleNamespace(device="cpu", max_grad_norm=norm))
    trainer.accelerator.optimizer_step_was_skipped = True  # which only counts with a scaler
    if scaler:
        trainer.accelerator.scaler = "scaler"
    if scheduler is not None:
        own = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        trainer.lr_scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(own)
    assert step_in_transformers(trainer).run([1, 2]) == 30
    assert state.did == [*PARTS, *ends]


def test_a_trainer_of_transformers_is_silent_during_a_trial_and_as_before_afterwards() -> None:
    state = State()
    trainer = in_transformers(state)
    step = step_in_transformers(trainer)
    log, event = trainer.log, trainer.callback_handler.call_event

    def trial() -> None:
        with step.silent:
            trainer.log("a figure")
            assert trainer.callback_handler.call_event("on_step", "args", "state", "control", more=1) == "control"
            assert trainer.current_gradient_accumulation_steps == 2
            state.sync_gradients = False
            raise ValueError("in the trial")

    with pytest.raises(ValueError, match="in the trial"):
        trial()
    assert (trainer.log, trainer.callback_handler.call_event) == (log, event)
    assert (state.sync_gradients, trainer.current_gradient_accumulation_steps, state.did) == (True, 9, [])


def test_a_step_of_transformers_has_the_batches_that_are_alike_and_torchs_own_objects() -> None:
    loader = DataLoader(range(4))  # type: ignore[arg-type]
    trainer = in_transformers(State())
    trainer.callback_handler.train_dataloader = SimpleNamespace(base_dataloader=loader)
    step = step_in_transformers(trainer)
    assert (step.batches, step.loader, step.optimizer) == ([[1, 2], [3, 4]], loader, trainer.optimizer.optimizer)
    assert (step.model, step.trainer, step.unsettable, step.left) == (trainer.model_wrapped, "transformers", (), 56)
    assert step.prepared("batch") == "batch"

    trainer.optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    for given, found in ((loader, loader), ([1], None)):
        trainer.callback_handler.train_dataloader = given
        step = step_in_transformers(trainer, [])
        assert (step.batches, step.loader, step.optimizer) == ([], found, trainer.optimizer)
        assert step.unsettable == ("fused_optimizer",)
    with step.silent:
        assert trainer.current_gradient_accumulation_steps == 1


def test_a_callback_of_transformers_waits_with_its_trainer_and_is_removed_if_this_fails() -> None:
    from perfnb.integrations.transformers import ProfileCallback, _after, _Waited

    state = State()
    callback: Any = SimpleNamespace(_ask=state.does("ask"), _steps=SimpleNamespace(get=state.does("got")))
    assert list(_Waited(iter([1, 2]), callback)) == [1, 2]
    assert state.did == [("ask",), ("got",)] * 3  # also for the end of the batches
    state.did.clear()
    assert _after(state.does("first"), state.does("then", 5))("given", more=1) == 5
    assert state.did == [("first",), ("then", "given")]

    own: Any = ProfileCallback()
    own._remove = state.does("removed")
    state.did.clear()
    assert own._removed_on_failure(state.does("run", 7))("given") == 7
    assert state.did == [("run", "given")]
    with pytest.raises(KeyboardInterrupt):
        own._removed_on_failure(failing)()
    assert state.did[-1] == ("removed",)
    trainer = State()
    assert not own._guards(trainer)
    own._guarded = weakref.ref(trainer)
    assert (own._guards(trainer), own._guards(state)) == (True, False)


def failing() -> None:
    raise KeyboardInterrupt


class Profiled:
    """A profile of a window that began with a step."""

    meta: ClassVar[dict[str, Any]] = {"loop": {"step": 5}}


@pytest.mark.parametrize("has_callback", [True, False])
def test_profiles_are_logged_and_given_to_the_user(
    has_callback: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[Any] = []
    monkeypatch.setattr(trainer_profiler, "log_at_once", lambda *given: logged.append(given) or ["Not all of it."])
    monkeypatch.setattr(trainer_profiler, "open_runs", lambda: ["an open run"])
    monkeypatch.setattr(trainer_profiler, "require_log", lambda log: None)
    done: list[Any] = []
    profile: Any = Profiled()
    for log, runs in ((True, ["an open run"]), ("mine", ["mine"]), (False, None)):
        TrainerProfiler(log=log, on_done=done.append if has_callback else None)._profiled(profile)
        assert logged == ([] if runs is None else [([(profile, 5)], runs)])
        assert capsys.readouterr().err == ("" if runs is None else "perfnb: Not all of it.\n")
        logged.clear()
    assert done == [profile] * (3 if has_callback else 0)
    TrainerProfiler(log=True)._log_result(None)
    assert logged == []


def profiler_with(state: State, profiles: list[Any], **options: Any) -> Any:
    """Return a callback whose run has some profiles."""
    profiler: Any = TrainerProfiler(**options)
    recorder = SimpleNamespace(name="mine", paused=state.does("paused"), tried=None)
    driver = SimpleNamespace(profiles=profiles, recorder=recorder, is_open=True, close=state.does("close"))
    driver.planned_at, driver.why_no_profile = 5, lambda end: "had 3 steps"
    profiler._steps = SimpleNamespace(
        **{name: state.does(name) for name in ("ask", "end_if_over", "pause")}, driver=driver
    )
    profiler._kept_run = SimpleNamespace(begun=False, begin=state.does("begin"), end=state.does("end"))
    profiler._step = lambda: made()
    return profiler


def test_levers_are_tried_once_after_the_first_window(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, tried = (
        State(),
        SimpleNamespace(_document=lambda: SimpleNamespace(verdict=SimpleNamespace(sentence="Faster."))),
    )
    given: list[Any] = []
    monkeypatch.setattr(trainer_profiler, "try_on", lambda step, *rest: given.append(rest) or tried)
    monkeypatch.setattr(trainer_profiler, "tried_facts", lambda tried, left: ("facts", left))
    profiler = profiler_with(state, [], try_levers=["threads"], levers_budget_s=9.0)
    profiler._has(["a"])
    profiler._ask()
    assert (given, state.did, list(profiler._seen)) == ([], [("begin",), ("end_if_over",), ("ask",)], [["a"]])
    profiler._kept_run.begun = True
    profiler._steps.driver.profiles += ["first", "second"]
    profiler._ask()
    profiler._ask()
    assert given == [("first", ["threads"], 9.0, "mine")]
    assert state.did[3:] == [("end_if_over",), ("paused",), ("ask",), ("ask",)]
    assert (profiler.levers, profiler._steps.driver.recorder.tried) == (tried, ("facts", 7))
    profiler._has(["b"])
    assert list(profiler._seen) == []  # nothing more is tried
    assert "perfnb: Faster." in "".join(capsys.readouterr())


def test_why_levers_are_not_tried_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_profiler, "try_on", lambda *_: "no memory is left")
    profiler = profiler_with(State(), ["first"], try_levers=True)
    with pytest.warns(RuntimeWarning, match=r"^perfnb: no levers were tried: no memory is left$"):
        profiler._ask()
    assert (profiler.levers, profiler._steps.driver.recorder.tried) == (None, None)
    profiler = profiler_with(State(), ["first"], try_levers=True)
    with pytest.warns(RuntimeWarning, match=r"^perfnb: no levers will be tried: it is manual\.$"):
        profiler._refuse_levers("it is manual")
    profiler._refuse_levers("it is manual")
    profiler._ask()
    profiler_with(State(), [])._refuse_levers("nobody asked")


@pytest.mark.parametrize(("profiles", "planned", "warns"), [([], 5, True), ([], None, False), (["one"], 5, False)])
def test_a_training_that_was_too_short_for_a_profile_warns(
    profiles: list[Any], planned: int | None, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State()
    monkeypatch.setattr(trainer_profiler, "summarise", lambda recorder: None)
    profiler = profiler_with(state, profiles)
    profiler._steps.driver.planned_at = planned
    with (
        pytest.warns(RuntimeWarning, match="no profile was made: the training had 3 steps") if warns else nullcontext()
    ):
        profiler._finish()
    assert state.did == [("pause",), ("close",)]
    for begun in (False, True):
        state.did.clear()
        profiler._kept_run.begun = begun
        profiler._installed.callback(state.does("uninstalled"))
        profiler._remove()
        assert state.did == [("close",), *([("end",)] if begun else []), ("uninstalled",)]
