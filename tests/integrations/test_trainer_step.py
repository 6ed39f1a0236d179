"""A trainer's step and its loader for a trial of levers, without a training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

from perfnb.errors import PerfnbError
from perfnb.integrations import trainer_levers, trainer_profiler
from perfnb.integrations.patches import replaced
from perfnb.integrations.trainer_levers import TrainerStep, _loader, _refusal, _words, tried_facts, try_on
from perfnb.integrations.trainer_profiler import TrainerProfiler
from perfnb.remedies.verdicts import LeverTrial
from tests.integrations.trainings import for_lightning, for_transformers

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


def test_a_failed_trial_is_reported_in_its_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(ValueError, match="broken"), replaced(owner, "word", "mine"):
        raise ValueError("broken")
    assert vars(owner) == {"word": "its own"}


@pytest.mark.parametrize("before", [{}, {"word": "its own"}])
def test_what_others_have_replaced_in_the_meantime_stays(before: dict[str, str]) -> None:
    owner = Owner()
    vars(owner).update(before)
    with replaced(owner, "word", "mine"):
        owner.word = "theirs"
    assert owner.word == "theirs"


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
    with pytest.raises(ValueError, match="at must be"):
        TrainerProfiler(at=-1)


def test_a_profiler_without_a_run_has_no_results() -> None:
    profiler = TrainerProfiler()

    assert list(profiler.profiles) == []
    assert (profiler.run, profiler.levers) == (None, None)
    assert (profiler._steps.driver.next_at, profiler.__getstate__()["levers_budget_s"]) == (100, 50.0)


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
    """Return a trainer whose objects record the requests that they get."""

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


def test_a_callback_of_transformers_waits_with_its_trainer() -> None:
    from perfnb.integrations.transformers import _after, _Waited

    state = State()
    callback: Any = SimpleNamespace(_ask=state.does("ask"), _steps=SimpleNamespace(get=state.does("got")))
    assert list(_Waited(iter([1, 2]), callback)) == [1, 2]
    assert state.did == [("ask",), ("got",)] * 3  # also for the end of the batches
    state.did.clear()
    assert _after(state.does("first"), state.does("then", 5))("given", more=1) == 5
    assert state.did == [("first",), ("then", "given")]


def failing() -> None:
    raise KeyboardInterrupt


def callback_with(state: State, callback: Any, prepared: list[Any]) -> Any:
    """Return a callback that records what it requests of its loop's steps, and how they were prepared."""
    own: Any = callback()
    names = ("get", "step", "use", "pause", "validate")
    steps = SimpleNamespace(
        driver=SimpleNamespace(close=state.does("close")), **{name: state.does(name) for name in names}
    )

    def prepare(**given: Any) -> None:
        prepared.append(given)
        own._steps = steps

    own._prepare, own._ask, own._has = prepare, state.does("ask"), state.does("has")
    own._refuse_levers = lambda reason: state.did.append("refused")
    return own


def looping(state: State) -> Any:
    """Return a trainer of transformers that can send events."""
    from transformers import Trainer

    def fetched(batches: Iterator[Any], count: int, device: str) -> tuple[list[Any], int]:
        return [next(batches) for _ in range(count)], count * 100

    class Loop(Trainer):
        def __init__(self) -> None:
            own = {"lr_scheduler": None, "_inner_training_loop": failing, "get_batch_samples": fetched}
            own |= {"evaluate": state.does("evaluate"), "_save_checkpoint": state.does("save")}
            vars(self).update(vars(in_transformers(state)) | own)

        def tell(self, event: Any, *given: Any, **facts: Any) -> None:
            event(*given, "control", **facts)

    return Loop()


@pytest.mark.parametrize("early", [True, False])
def test_a_callback_of_transformers_is_part_of_its_trainer_during_a_training(early: bool) -> None:
    state, prepared = State(), list[Any]()
    own, trainer = callback_with(state, for_transformers, prepared), looping(state)
    args, counts = SimpleNamespace(eval_strategy="no"), SimpleNamespace(max_steps=100, global_step=44)
    own.on_init_end(args, counts, "control")
    assert own._guarded is None  # no trainer has sent this
    if early:
        trainer.tell(own.on_init_end, args, counts)
        loop = trainer._inner_training_loop
        trainer.tell(own.on_init_end, args, counts)
        assert loop is trainer._inner_training_loop is not failing  # guarded once
    owners = [trainer, trainer.callback_handler, trainer.accelerator, trainer.optimizer]
    before = [dict(vars(owner)) for owner in owners]
    facts = {"model": nn.Linear(1, 1), "optimizer": trainer.optimizer, "train_dataloader": [1, 2]}
    trainer.tell(own.on_train_begin, args, counts, **facts)
    trainer.tell(own.on_train_begin, args, counts, **facts)  # again, after a training that did not end as planned

    _, given = prepared
    assert state.did == [("close",)]
    state.did.clear()
    assert (given["name"], given["trainer"], given["loader"]) == ("Linear", "transformers", [1, 2])
    assert given["namespace"]() == {"model": trainer.model_wrapped, "optimizer": trainer.optimizer.optimizer}
    assert given["left"]() == 56
    assert trainer.get_batch_samples(iter([1, 2]), 2, "cpu") == ([1, 2], 200)
    assert state.did == [*[("ask",), ("get",)] * 2, ("get", 1), ("get", 2), ("has", [1, 2])]
    own._seen.append([3])
    state.did.clear()
    assert (own._step().batches, own._step().model) == ([[3]], trainer.model_wrapped)
    for call, *told in (
        (trainer.evaluate, "validate", "evaluate"),
        (trainer._save_checkpoint, "pause", "save"),
        (lambda: own.on_epoch_end(args, counts, "control"), "pause"),
        (lambda: own.on_step_end(args, counts, "control"), "step"),
    ):
        state.did.clear()
        call()
        assert state.did == [(name,) for name in told]
    changed = [
        {name for name, value in vars(owner).items() if value is not old.get(name)}
        for owner, old in zip(owners, before, strict=True)
    ]
    usual = {"get_batch_samples", "evaluate", "_save_checkpoint"}
    late = [usual | {"training_step"}, {"call_event"}, {"clip_grad_norm_"}, {"step"}]
    assert changed == ([usual, set(), set(), set()] if early else late)
    state.did.clear()
    if early:
        with pytest.raises(KeyboardInterrupt):
            trainer._inner_training_loop()
    else:
        own._finish = failing
        with pytest.raises(KeyboardInterrupt):
            own.on_train_end(args, counts, "control")
    assert state.did == [("close",)]
    assert [vars(owner) for owner in owners] == before


def test_a_callback_of_transformers_without_its_trainer_only_profiles() -> None:
    state, prepared = State(), list[Any]()
    own = callback_with(state, for_transformers, prepared)
    own.on_train_begin("args", "state", "control", model=state)
    assert prepared[0]["namespace"]() == {"model": state, "optimizer": None}
    assert state.did == ["refused"]


@pytest.mark.parametrize(
    ("automatic", "optimizers", "refused"), [(True, 1, False), (False, 1, True), (True, 2, True), (True, 0, True)]
)
def test_a_callback_of_lightning_is_part_of_its_loop_during_a_training(
    automatic: bool, optimizers: int, refused: bool
) -> None:
    state, prepared = State(), list[Any]()
    own = callback_with(state, for_lightning, prepared)
    trainer: Any = Fitting(max_steps=50, optimizers=["sgd"] * optimizers, train_dataloader="loader")
    loop, module = trainer.fit_loop.epoch_loop, SimpleNamespace(automatic_optimization=automatic)
    loop._on_before_fetch, loop._on_after_fetch = functions = state.does("before"), state.does("after")
    own.on_train_start(trainer, module)
    state.did.clear()
    own.on_train_start(trainer, module)  # again, after a training that did not end as planned

    _, given = prepared
    assert (given["name"], given["trainer"], given["loader"]) == ("SimpleNamespace", "lightning", "loader")
    assert (given["optimizers_end_steps"], given["left"]()) == (automatic, 6)
    assert given["namespace"]()["model"] is module
    assert ("optimizer" in given["namespace"]()) == (optimizers == 1)
    assert state.did == [("close",), *["refused"] * refused]
    for call, *told in (
        (lambda: (loop._on_before_fetch(), loop._on_after_fetch()), "before", "ask", "get", "after"),
        (lambda: own.on_validation_start(trainer, module), "validate"),
        (lambda: own.on_save_checkpoint(trainer, module, {}), "pause"),
        (lambda: own.on_train_epoch_end(trainer, module), "pause"),
        (lambda: own.on_train_batch_end(trainer, module, None, [1], 0), "use"),
    ):
        state.did.clear()
        call()
        assert state.did == [(name,) for name in told]
    state.did.clear()
    own.on_train_batch_start(trainer, module, ["not kept"], 0)
    own._to_try = True
    own.on_train_batch_start(trainer, module, ["kept"], 1)
    for trainer.global_step in (45, 45):
        own.on_train_batch_end(trainer, module, None, ["kept"], 1)
    steps = [("get", ["not kept"]), ("get", ["kept"]), ("step",), ("has", [["kept"]]), ("use",), ("use",)]
    assert (state.did, own._batches) == (steps, [])
    own._finish = failing
    state.did.clear()
    with pytest.raises(KeyboardInterrupt):
        own.on_train_end(trainer, module)
    assert (loop._on_before_fetch, loop._on_after_fetch) == functions
    own.on_exception(trainer, module, KeyboardInterrupt())
    own.teardown(trainer, module, "fit")
    assert state.did == [("close",)] * 3


def test_a_step_of_lightning_is_that_of_its_loop_and_leaves_no_trace() -> None:
    from perfnb.integrations.lightning import _step

    state, counted = State(), {"steps": [4]}
    loader: Any = DataLoader(range(4))  # type: ignore[arg-type]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    schedules = (("step", "schedule"), ("epoch", "not this"), ("step", "also"))
    own = {"callbacks": ["mine"], "_loggers": ["mine"], "profiler": "mine"}
    kind = type("Trainer", (Fitting,), {"__module__": "lightning.pytorch.trainer.trainer"})
    trainer: Any = kind(
        **own,
        optimizers=["sgd"],
        loggers=["mine"],
        accumulate_grad_batches=2,
        train_dataloader=loader,
        estimated_stepping_batches=100,
        lr_scheduler_configs=[
            *(
                SimpleNamespace(interval=each, scheduler=SimpleNamespace(step=state.does(name)))
                for each, name in schedules
            ),
            SimpleNamespace(interval="step", scheduler=plateau),
        ],
        precision_plugin=SimpleNamespace(convert_input=lambda batch: f"{batch} converted"),
        strategy=SimpleNamespace(batch_to_device=lambda batch: f"{batch} there"),
    )
    module: Any = SimpleNamespace(
        log=state.does("log"),
        log_dict=state.does("log"),
        _on_before_batch_transfer=lambda batch, dataloader_idx: f"{batch} {dataloader_idx}",
    )

    def run(optimizer: Any, place: int, arguments: Any) -> dict[str, int]:
        module.log("loss", 3)
        module.log_dict({})
        assert (trainer.callbacks, len(trainer._loggers)) == ([], 1)
        assert "mine" not in (trainer.profiler, *trainer._loggers)
        state.did.append((optimizer, place, arguments, trainer.fit_loop._should_accumulate()))
        counted["steps"][0] += 1
        return {"loss": arguments[0] * 10}

    progress = SimpleNamespace(state_dict=lambda: counted, load_state_dict=state.does("load"))
    loop, trainer.fit_loop._should_accumulate = trainer.fit_loop.epoch_loop, "own"
    loop.automatic_optimization, loop.batch_idx = SimpleNamespace(run=run, optim_progress=progress), 7
    loop._build_kwargs = lambda given, batch, place: (batch, place, *given)
    step: Any = _step(trainer, module, [[1], [1, 2], [3, 4], [5, 6, 7]])

    def trial() -> None:
        with step.silent:
            assert step.run([1, 2]) == [10, 20]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial()
    runs = [("sgd", 7, (1, 7), True), ("sgd", 7, (2, 7), False)]
    assert state.did == [*runs, ("schedule",), ("also",), ("load", {"steps": [4]})]
    assert {name: vars(trainer)[name] for name in own} == own
    assert trainer.fit_loop._should_accumulate == "own"
    assert (step.batches, step.model, step.optimizer, step.loader) == ([[1, 2], [3, 4]], module, "sgd", loader)
    assert (step.trainer, step.unsettable, step.left) == ("lightning", (), 56)
    assert step.prepared("batch") == "batch converted 0 there"
    trainer.train_dataloader = [1, 2]
    assert _step(trainer, module, []).loader is None


def test_a_callback_of_lightning_belongs_to_the_package_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfnb.integrations import lightning

    new, old = "lightning.pytorch", "pytorch_lightning"

    def found(used: Any, installed: Any = (), lacks: str | None = "") -> Any:
        def imported(name: str) -> Any:
            if name in installed:
                return SimpleNamespace(Callback=name)
            raise ModuleNotFoundError(name=name.split(".")[0] if lacks == "" else lacks)

        modules = {name: SimpleNamespace(Callback=name) for name in used} or {new: SimpleNamespace()}
        monkeypatch.setattr(lightning, "sys", SimpleNamespace(modules=modules))
        monkeypatch.setattr(lightning, "importlib", SimpleNamespace(import_module=imported))
        return lightning._callbacks()

    assert found([old, new]) == (new, old)
    assert found([old], [new]) == (old,)
    assert found([], [new, old]) == (new,)
    assert found([], [old]) == (old,)
    with pytest.raises(PerfnbError, match="needs Lightning, which is not installed"):
        found([])
    for lacks in ("torchmetrics", None):  # Lightning itself is there
        with pytest.raises(ModuleNotFoundError):
            found([], lacks=lacks)


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


@pytest.mark.parametrize("log", [True, False])
def test_a_callback_that_logs_passes_windows_on_to_the_user_itself(log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given, done = list[dict[str, Any]](), list[Any]().append
    kind = trainer_profiler.LoopProfiler
    made = functools.wraps(kind)(lambda **options: given.append(options) or kind(**options))
    monkeypatch.setattr(trainer_profiler, "LoopProfiler", made)
    profiler = TrainerProfiler(on_done=done, log=log)
    profiler._prepare(name="Linear", optimizers_end_steps=False)
    assert [one["on_done"] for one in given] == [profiler._profiled if log else done] * 2
    assert [one["name"] for one in given] == ["training", "Linear"]
    TrainerProfiler(name="mine")._prepare(name="Linear")
    assert given[-1]["name"] == "mine"


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


def test_the_reason_why_levers_are_not_tried_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
    profiler._log_result = state.does("log")
    with (
        pytest.warns(RuntimeWarning, match="no profile was made: the training had 3 steps") if warns else nullcontext()
    ):
        profiler._finish()
    assert state.did == [("pause",), ("close",), ("log", None)]
    for begun in (False, True):
        state.did.clear()
        profiler._kept_run.begun = begun
        profiler._installed.callback(state.does("uninstalled"))
        profiler._remove()
        assert state.did == [("close",), *([("end",)] if begun else []), ("uninstalled",)]
