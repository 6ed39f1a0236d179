"""Check of a model quantised for inference: smaller, same answers, and the original unchanged."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

from perfnb.labs.answers import as_function, outcome
from perfnb.labs.changes import judge_report, report_facts, same_state, state
from perfnb.labs.exercise import Facts, Hint, all_there, is_false

#: Largest fraction of the original bytes for int8 weights, and how far the largest output may move.
SMALLER, MOVED = 0.4, 0.15
#: Its reports: many images at once, and one at a time.
INT8 = ("int8", "int8, one at a time")


def measure_int8(answer: Any, net: Any = None, x: Any = None, reports: Any = None, made_of: Any = None) -> Facts:
    import torch

    function = as_function(answer, "quantised(net)")
    kept, kinds = state(net), [type(each).__name__ for each in net.modules()]
    given = copy.deepcopy(net)  # the reader's own model stays unchanged, whatever the function does
    inputs = (x, x.flip(0)[:7] * 0.9)
    with torch.inference_mode():
        answers = [net(images) for images in inputs]
    try:
        small = outcome(function, given)
    except Hint:
        if _quantises():
            raise
        return {"can": False}
    if not callable(small):
        raise Hint("Return the model for inference, with int8 weights.")
    moved: list[float | None] = []
    with torch.inference_mode():
        for images, wanted in zip(inputs, answers, strict=True):
            got = outcome(small, images)
            right = isinstance(got, torch.Tensor) and got.shape == wanted.shape
            moved.append(float((got - wanted).abs().max() / wanted.abs().max()) if right else None)
    return {
        "can": True,
        "bytes": [_bytes(each) for each in (net, small)],
        "moved": moved,
        "unchanged": same_state(kept, state(given)) and kinds == [type(each).__name__ for each in given.modules()],
        "reports": [report_facts(reports, name, made_of, answer) for name in INT8],
    }


def _bytes(model: Any) -> int:
    """Size of a saved model in bytes, including packed weights."""
    import torch

    kept = io.BytesIO()
    torch.save(model.state_dict() if hasattr(model, "state_dict") else {}, kept)
    return kept.tell()


def _quantises() -> bool:
    """Whether torch's dynamic quantisation works on this machine, by trying it."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.ao.quantization import quantize_dynamic

            model = torch.nn.Sequential(torch.nn.Linear(8, 8))
            small = quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
            return bool(torch.isfinite(small(torch.ones(2, 8))).all())
    except Exception:  # whatever the reason, it is not available
        return False


def judge_int8(facts: Facts) -> None:
    if is_false(facts["can"]):
        return
    before, after = facts["bytes"]
    if not facts["unchanged"]:
        raise Hint("Your function changed the model it was given; somebody may still train it.")
    if after > SMALLER * before:
        raise Hint(
            f"The saved model has {100 * after / before:.0f} % of the original bytes; int8 needs about a quarter."
        )
    if any(each is None or each > MOVED for each in all_there(facts["moved"], 2)):
        raise Hint("Its answers differ from the original model's, at least for some images.")
    for name, report in zip(INT8, facts["reports"], strict=True):
        judge_report(report, name)
