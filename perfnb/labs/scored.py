"""Tests for a reader's function that scores a model on labelled inputs, using models with known mistakes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfnb.labs.answers import result_of
from perfnb.labs.exercise import Facts, Hint


def state(model: Any) -> list[Any]:
    """Return copies of a model's parameters and buffers."""
    return [kept.detach().clone() for kept in model.state_dict().values() if isinstance(kept, torch.Tensor)]


def same_state(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Check whether two states are bit-identical."""
    return len(first) == len(second) and all(map(torch.equal, first, second))


def scored(function: Callable[..., Any], model: Any, x: Any, y: Any, training: bool) -> Facts:
    """Call the function with a model in training or evaluation mode, and return its result and its side effects."""
    model.train(training)
    kept = state(model)
    calls: list[tuple[bool, bool]] = []

    def called(net: Any, *_: Any) -> None:
        calls.append((torch.is_grad_enabled(), any(part.training for part in net.modules())))

    handle = model.register_forward_hook(called)
    said = result_of(function, model, x, y)
    handle.remove()
    return {
        "said": said,
        "calls": len(calls),
        "graded": any(graded for graded, _ in calls),
        "called_in_training": any(mode for _, mode in calls),
        "training": [training, model.training],
        "unchanged": same_state(kept, state(model)) and all(part.grad is None for part in model.parameters()),
    }


def judge_effects(case: Facts) -> None:
    """Raise a `Hint` if a function that returned the right result changed the model."""
    if case["training"][0] != case["training"][1]:
        before, after = ("training" if mode else "evaluation" for mode in case["training"])
        raise Hint(f"The result is right, but the model was in {before} mode and is left in {after} mode.")
    if not case["unchanged"]:
        raise Hint("The result is right, but your function leaves statistics or gradients in the model.")
