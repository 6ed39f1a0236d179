"""What cannot be a step, batches or a loss is refused in one sentence, before anything runs."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb.errors import CaptureError
from perfnb.step.checks import note_on_meta, refuse_meta, require_loss, require_name, require_steps

X, Y = torch.ones(8, 4), torch.zeros(8)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


#: Every function that takes batches, given them.
TAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "profile_step": lambda step, batches: perfnb.profile_step(step, batches),
    "time_step": lambda step, batches: perfnb.time_step(step, batches),
    "find_leaks": lambda step, batches: perfnb.find_leaks(step, batches),
    "ab_test": lambda step, batches: perfnb.ab_test(step, step, batches),
    "confirm_input_bound": lambda step, batches: perfnb.confirm_input_bound(step, batches, nn.Linear(1, 1)),
}


def never(batch: Any) -> None:
    pytest.fail("ran")


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (X, r"^batches is a tensor, whose rows would be used as batches: pass \[x\] for one batch"),
        ((X, Y), r"^batches is a tuple of tensors, .*: pass \[\(x, y\)\] for one batch, "),
    ],
    ids=["tensor", "tuple"],
)
def test_no_function_takes_one_batch_for_many(take: Callable[[Any, Any], Any], batches: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        take(never, batches)


ONE = {
    "parameter": (nn.Parameter(X), "is a Parameter, whose rows"),
    "array": (np.ones((8, 4)), "is a numpy array, whose rows"),
    "frame": (pd.DataFrame({"a": [1]}), "is a DataFrame, whose rows"),
    "named tuple": (Pair(X, Y), "is a tuple of tensors"),
    "tuple of array and list": ((np.ones(3), [1, 2, 3]), "is a tuple of tensors"),
    "mapping": ({"x": X}, "is a dict, whose keys would be used as batches: pass [batch] for one batch"),
    "another mapping": (UserDict(x=X), "is a UserDict, whose keys"),
}


@pytest.mark.parametrize(("batches", "words"), ONE.values(), ids=ONE)
def test_one_batch_is_not_many(batches: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        require_steps({"step": never}, batches, "f(step, loader)")
    assert words in str(caught.value)


MANY = {
    "list of tensors": [X, X],
    "tuple of batches": ((X, Y), (X, Y)),
    "empty": (),
    "loader": DataLoader([1]),
    "iterator": iter(X),
    "function": lambda: X,
    "zip": zip(X, Y, strict=True),
    "range": range(3),
}


@pytest.mark.parametrize("batches", MANY.values(), ids=MANY)
def test_many_batches_are_taken(batches: Any) -> None:
    require_steps({"step": never}, batches, "f(step, loader)")


def two(x: Any, y: Any) -> None: ...


def fits(*_: Any) -> None: ...


def optional(batch: Any = None) -> None: ...


def needs_a_keyword(*, batch: Any) -> None: ...


def none() -> None: ...


class Step:
    def method(self, batch: Any) -> None: ...

    def __call__(self) -> None: ...


@functools.wraps(two)
def wrapper() -> None: ...


@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_every_function_wants_a_parameter_for_the_batch(take: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"^(step|a|baseline) does not accept a batch, but batches were given: add a"):
        take(none, [X])


@pytest.mark.parametrize("name", [name for name in TAKERS if name != "confirm_input_bound"])
def test_every_function_wants_batches_for_a_step_that_takes_one(name: str) -> None:
    how = rf"requires a batch, but no batches were given: write {name}\((step|a, b|baseline, candidate), loader\)\.$"
    with pytest.raises(TypeError, match=how):
        TAKERS[name](never, None)


FIT: list[tuple[Any, tuple[bool, ...]]] = [
    (none, (False,)),
    (never, (True,)),
    (optional, (False, True)),
    (fits, (False, True)),
    (needs_a_keyword, (False, True)),  # Python names what is missing
    (wrapper, (False,)),
    (Step(), (False,)),
    (Step().method, (True,)),
    (functools.partial(two, X), (True,)),
    (functools.partial(two, y=Y), (True,)),
    (nn.Linear(4, 2), (True,)),
    (nn.Sequential(nn.Linear(4, 2)), (True,)),
    (torch.sum, (False, True)),  # built-in: nobody can tell
]


@pytest.mark.parametrize(("step", "feeding"), FIT)
def test_only_what_must_fail_is_refused(step: Any, feeding: tuple[bool, ...]) -> None:
    for fed in (False, True):
        batches = [X] if fed else None
        if fed in feeding:
            require_steps({"step": step}, batches, "f(step, loader)")
        else:
            with pytest.raises(TypeError, match=r"^step (requires|does not accept) a batch, but (no )?batches were"):
                require_steps({"step": step}, batches, "f(step, loader)")


@pytest.mark.parametrize("batches", [None, [(X, Y)]])
def test_a_step_with_two_arguments_is_asked_to_unpack_its_batch(batches: Any) -> None:
    with pytest.raises(TypeError, match=r"^step takes 2 arguments, but a step is called with at most one, .*: unpack"):
        perfnb.time_step(two, batches)


def test_an_object_that_is_not_a_step_is_refused_with_what_to_write_instead() -> None:
    loader = DataLoader([1])
    write = r"^candidate must be .*, not DataLoader: write ab_test\(baseline, candidate, loader\)\.$"
    with pytest.raises(TypeError, match=write):
        perfnb.ab_test(none, loader)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^step must be .*, not DataLoader: write time_step\(step, loader\)\.$"):
        perfnb.time_step(loader, none)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^candidate must be .*, not Tensor: pass candidate, not candidate\(\)\.$"):
        perfnb.ab_test(none, X)  # type: ignore[arg-type]

    async def later() -> None: ...

    def makes() -> Iterator[int]:
        yield 1

    for step in (later, makes):
        with pytest.raises(TypeError, match=r"^candidate must run when it is called"):
            perfnb.ab_test(none, step)
    with pytest.raises(TypeError, match=r"^resolution requires an argument, but is called without arguments: wrap it"):
        perfnb.system_check(resolution=never)  # type: ignore[arg-type]


def test_a_scaling_study_wants_functions() -> None:
    with pytest.raises(TypeError, match=r"^make_step\(1\) must return a function, .*, but returned Tensor: write"):
        perfnb.scaling_study(lambda size: X * size, [1, 2])
    with pytest.raises(TypeError, match=r"^make_step must be a function that returns the step for a size, not list"):
        perfnb.scaling_study([none], [1, 2])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^the step that make_step returns requires an argument"):
        perfnb.scaling_study(lambda size: never, [1, 2])  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("loss", "batch", "message"),
    [
        (nn.functional.cross_entropy, X, r"loss takes 2 arguments, but it is called as loss\(output\) because"),
        (nn.MSELoss(), X, r"only the input: pass \(x, y\) as batch, where y is the target\.$"),
        (torch.mean, X, None),
        (torch.nn.functional.relu, X, None),
        (nn.MSELoss(), (X, Y), None),
        (lambda output: output.sum(), (X, Y), r"loss takes 1 argument, but it is called as loss\(output, target\)"),
        (lambda output: output.sum(), {"input": X}, r"loss\(output, batch\) because the batch is a mapping: pass "),
        ("mse", X, "loss must be a function such as"),
    ],
)
def test_a_loss_with_other_arguments_is_refused_with_what_it_gets(loss: Any, batch: Any, message: str | None) -> None:
    if message is None:
        require_loss(loss, batch)
        return
    model = nn.Linear(4, 1)
    with pytest.raises(TypeError, match=message):
        perfnb.estimate_memory(model, batch, loss=loss)
    with pytest.raises(TypeError, match=message):
        perfnb.compare_architectures({"model": model}, batch, loss=loss)


def test_a_loss_that_is_never_called_is_not_asked() -> None:
    assert perfnb.estimate_memory(nn.Linear(4, 1), X, loss=nn.MSELoss(), training=False).peak_bytes > 0


def test_batches_may_stand_third() -> None:
    seen: list[int] = []
    perfnb.ab_test(seen.append, lambda batch: None, [1, 2], budget_s=0.05)
    assert set(seen) == {1, 2}


class Named(nn.Module):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.ones(2, 2)[input_ids.long()]


PAIRS = DataLoader(TensorDataset(X, Y), batch_size=4)


@pytest.mark.parametrize("take", [TAKERS[name] for name in ("profile_step", "time_step", "ab_test")])
@pytest.mark.parametrize(
    ("model", "batches", "kind", "instead"),
    [
        (nn.Sequential(nn.Linear(4, 4)), PAIRS, "list", "lambda batch: model(batch[0])"),
        (nn.Linear(4, 4), [(X, Y)], "tuple", "lambda batch: model(batch[0])"),
        (Named(), [{"input_ids": torch.tensor([0, 1])}], "dict", "lambda batch: model(**batch)"),
    ],
)
def test_a_model_that_cannot_take_its_batch_is_explained(
    take: Callable[[Any, Any], Any], model: nn.Module, batches: Any, kind: str, instead: str
) -> None:
    with pytest.raises(TypeError) as caught:
        take(model, batches)

    said = str(caught.value)
    name = type(model).__name__
    assert said.startswith(f"A step is a function that receives the whole batch, here a {kind}, but {name}")
    assert f"instead of the model, pass {instead}, or" in said
    assert said.count(". ") == 0
    assert caught.value.__cause__ is None
    works = eval(instead, {"model": model})
    perfnb.time_step(works, batches, steps=5)


def test_a_models_own_error_is_not_replaced() -> None:
    class Broken(nn.Module):
        def forward(self, batch: Any) -> None:
            raise TypeError("an int is not a str")

    with pytest.raises(TypeError, match=r"^an int is not a str$"):
        perfnb.time_step(Broken(), PAIRS)


def test_a_model_of_two_inputs_is_wrapped() -> None:
    class Both(nn.Module):
        def forward(self, x: Any, y: Any) -> None: ...

    with pytest.raises(TypeError, match=r"takes 2 arguments, .* the batch: pass lambda batch: model\(\*batch\)\.$"):
        perfnb.profile_step(Both(), PAIRS)


def test_a_model_without_data_is_named_unless_it_loads_its_weights() -> None:
    model, real = nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)
    mixed = nn.Sequential(model, real)
    note = note_on_meta({"real": real, "mixed": mixed, "net": model})
    assert note is not None
    assert note.startswith("perfnb: net is on the meta device, where tensors have no data. ")
    assert note_on_meta({"real": real, "mixed": mixed, "none": nn.Tanh()}) is None
    dispatched = nn.Sequential(nn.Linear(2, 2, device="meta"))
    dispatched[0]._hf_hook = object()
    assert note_on_meta({"net": dispatched}) is None
    with pytest.raises(CaptureError, match="The step runs on the meta device"):
        refuse_meta(({"x": [X, X.to("meta")]},))
    refuse_meta(({"x": [X]},))


@pytest.mark.parametrize("name", ["", "mine", None])
def test_the_name_of_a_result_is_text_or_none(name: Any) -> None:
    require_name(name)
    with pytest.raises(TypeError, match=r"name must be text, not 3\."):
        require_name(3)
