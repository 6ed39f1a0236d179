"""What `compare_inference` says: its table, decisions and views; that nothing stays changed; a wrong backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.bench.values import DIFFERENT, UNCHECKED, Values
from perfnb.inference import backends
from perfnb.inference.backends import Backend, ModelCall, ReadyBackend
from tests.fake_clock import FakeClock
from tests.inference.backend_samples import backends_of_times
from tests.inference.models import small_cnn


def planted(name: str, change: Callable[[Tensor], Tensor], clock: FakeClock, ms: float) -> Backend:
    """Return a backend that changes what the model returns, and takes a while."""

    def make(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
        def run(*args: Any, **kwargs: Any) -> Any:
            clock.pass_exactly(ms)
            with torch.inference_mode():
                return change(model(*args, **kwargs))

        return ReadyBackend(run, 10)

    return Backend(name, lambda model, call: "", make)


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Callable[..., None]:
    """Register more backends; eager takes 10 ms on the fake clock."""

    def planting(*more: Backend) -> None:
        slow = planted("eager", lambda y: y, clock, 10)
        monkeypatch.setattr("perfnb.inference.backend_trials.EAGER", slow)
        monkeypatch.setattr(backends, "BACKENDS", (slow, *more))

    return planting


def shifted(y: Tensor) -> Tensor:
    """Right in all places but one."""
    wrong = y.clone()
    wrong[0, 0] += 0.5 * y.abs().max()
    return wrong


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "is off by": shifted,
    "NaN": lambda y: y * torch.nan,
    "is off by inf": lambda y: y[:, :-1],
    "": lambda y: y * 1.001,
    "it returns 2 outputs instead of 1": lambda y: (y, y),
}


@pytest.mark.parametrize("why", WRONG)
def test_a_wrong_backend_is_rejected_however_fast(why: str, plant: Callable[..., None], clock: FakeClock) -> None:
    model, x = small_cnn()
    plant(planted("wrong", WRONG[why], clock, 1), planted("right", lambda y: y, clock, 5))

    found = perfnb.compare_inference(model, x, backends=["wrong", "right"], budget_s=5)

    row = found.table.loc["wrong"]
    assert (row["verdict"], row["values"], row["decision"]) == ("faster", DIFFERENT, "reject")
    assert row["reason"].startswith("its outputs are different: ")
    assert why in row["reason"]
    assert found.table.loc["right", "decision"] == "accept"
    assert "Use right: 5.00 ms per call, 50 % less than eager: 0.500 ×" in str(found)


def test_the_model_and_the_random_numbers_stay_as_they_were() -> None:
    model, x = small_cnn()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = {name: (module.training, dict(vars(module)).keys()) for name, module in model.named_modules()}
    pointers = [(each.data_ptr(), each.requires_grad, each.dtype, each.stride()) for each in model.parameters()]
    numbers, threads = torch.random.get_rng_state(), torch.get_num_threads()

    found = perfnb.compare_inference(model, x, backends=("eager", "bf16", "folded", "channels_last"), budget_s=0.2)

    assert list(found.table.index) == ["eager", "bf16", "folded", "channels_last"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert modes == {name: (module.training, dict(vars(module)).keys()) for name, module in model.named_modules()}
    assert pointers == [(each.data_ptr(), each.requires_grad, each.dtype, each.stride()) for each in model.parameters()]
    assert torch.equal(numbers, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads
    assert all(each.grad is None for each in model.parameters())


def test_a_journal_gets_the_times_of_each_backend_and_whether_it_is_accepted(tmp_path: Path) -> None:
    journal = perfnb.journal(tmp_path / "journal")

    assert len(journal.add(backends_of_times(exact=0.5, exact_slow=1.5), hypothesis="fuses more")) == 3

    history = journal.history
    assert history["change"].tolist() == ["backend eager", "backend exact", "backend exact_slow"]
    assert history["median_ms"].tolist() == pytest.approx([10, 5, 15], rel=0.01)
    assert history["accepted"].tolist() == [True, True, False]


def decisions(found: Any) -> list[str]:
    assert found.table["decision"].iloc[[0, -1]].to_dict() == {"eager": "baseline", "openvino": "refused"}
    return found.table["decision"].tolist()[1:-1]


def test_limits_decide_and_the_first_comparison_stays() -> None:
    found = backends_of_times(close=0.5, low=0.4)

    assert decisions(found.decide(limits={"difference": 0.02, "median_ms": 4.5})) == ["reject", "accept"]
    assert decisions(found) == ["accept", "inconclusive"]
    assert found.table.loc["openvino", "reason"].startswith("not installed")


def test_quality_is_measured_with_each_backend_and_eager_sets_the_limit() -> None:
    found = backends_of_times(low=0.4, wrong=0.2)
    errors = {"eager": 0.030, "low": 0.0300001, "wrong": 0.9}

    judged = found.decide(quality=lambda run: {"error": errors[run("x")]})

    assert decisions(judged) == ["accept", "reject"]
    assert judged.table.loc["wrong", "reason"] == "error is 0.9, more than 0.03"
    loose = found.decide(quality=lambda run: {"error": errors[run("x")]}, limits={"error": 1.0})
    assert loose.table.loc["wrong", "decision"] == "accept"


def test_quality_that_fails_with_a_backend_leaves_it_open_and_with_eager_it_is_raised() -> None:
    found = backends_of_times(exact=0.5)

    def other_size(run: Callable[..., Any]) -> dict[str, float]:
        if run("x") == "exact":
            raise ValueError("expected 4 samples")
        return {"error": 0.1}

    row = found.decide(quality=other_size).table.loc["exact"]
    assert (row["decision"], row["reason"]) == (
        "inconclusive",
        "quality fails with this backend: ValueError: expected 4 samples",
    )
    with pytest.raises(ZeroDivisionError):
        found.decide(quality=lambda run: {"error": 1 / 0})


def test_what_the_model_raises_reaches_the_user() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        perfnb.compare_inference(nn.Linear(4, 4), torch.ones(2, 5), backends=["eager"], budget_s=0.1)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"backends": ["tensorrt"]}, ValueError, "backends must be chosen from eager, compile"),
        ({"backends": []}, ValueError, "backends must be chosen from"),
        ({"budget_s": 0}, ValueError, "budget_s"),
        ({"quality": 3}, TypeError, "quality must be a function that accepts a function to run the model"),
        ({"limits": {"difrence": 1}}, ValueError, "did you mean 'difference'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        perfnb.compare_inference(nn.Linear(4, 4), torch.ones(2, 4), **options)


def test_only_a_model_that_is_not_compiled_is_taken() -> None:
    with pytest.raises(TypeError, match="needs a torch module"):
        perfnb.compare_inference(torch.relu, torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="already compiled"):
        perfnb.compare_inference(torch.compile(nn.Linear(4, 4)), torch.ones(2, 4))  # type: ignore[arg-type]


def test_alone_the_model_is_only_timed(plant: Callable[..., None]) -> None:
    model, x = small_cnn()
    plant()

    found = perfnb.compare_inference(model, x, backends="eager", budget_s=1)

    assert found.table["median_ms"].round().tolist() == [10.0]
    assert "No backend is both faster" in str(found)


def test_quality_that_returns_no_losses_is_refused_before_anything_is_timed(
    plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant()
    model, x = small_cnn()

    def run_once(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was timed")

    monkeypatch.setattr("perfnb.inference.backend_trials.planned_rounds", run_once)

    with pytest.raises(TypeError, match="not float"):
        perfnb.compare_inference(model, x, backends=["eager"], quality=lambda run: 0.5, budget_s=1)
    odd = backends_of_times(exact=0.5).decide(quality=lambda run: {"error" if run("x") == "eager" else "other": 0.1})
    assert odd.table.loc["exact", "decision"] == "inconclusive"
    assert "quality returned 'error' for only one side" in odd.table.loc["exact", "reason"]


def test_quality_runs_once_with_the_model_as_it_is(plant: Callable[..., None]) -> None:
    plant()
    model, x = small_cnn()
    losses = []

    def quality(run: Callable[..., Any]) -> dict[str, float]:
        losses.append(float(run(x).abs().mean()))
        return {"loss": losses[-1]}

    perfnb.compare_inference(model, x, backends=["eager"], quality=quality, budget_s=1)

    assert len(losses) == 1


def test_a_busy_machine_and_unchecked_outputs_are_reported() -> None:
    found = backends_of_times(exact=0.5)
    assert "busy" not in str(found)

    unchecked = Values(UNCHECKED, None, "the model uses random numbers even in evaluation mode")
    found = backends_of_times(unchecked, {"load_before": 6.0, "cpus": 2}, exact=0.5)

    assert "The machine was already busy (load 6.0 on 2 CPUs)." in str(found)
    assert "The machine was already busy (load 6.0 on 2 CPUs)." in str(found.decide())
    assert "Outputs were not checked: the model uses random numbers even in evaluation mode." in str(found)
