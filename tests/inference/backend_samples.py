"""Backends with known figures, for the tests of what shows them."""

from __future__ import annotations

from typing import Any

from perfnb.bench.values import DIFFERENT, NOISE, REDUCED, SAME, Values
from perfnb.inference.backend_figures import BackendRounds, BackendTrial
from perfnb.inference.compare_inference import InferenceComparison


def backends_of_times(
    own: Values = Values(SAME, 0.0),  # noqa: B008
    noise: dict[str, Any] | None = None,
    **times: float,
) -> InferenceComparison:
    """Backends that take so many times as long as eager, with outputs by their names; `own` are eager's."""
    values = {"exact": Values(SAME, 0.0), "close": Values(NOISE, 1e-6), "low": Values(REDUCED, 0.01)}
    values["wrong"] = Values(DIFFERENT, 0.8, "output 0 is off by 0.8 of its length")
    rows = {"eager": 1.0} | times
    trials = []
    for place, (name, factor) in enumerate(rows.items()):
        verdict = own if name == "eager" else values.get(name.split("_")[0], Values(SAME, 0.0))
        spread = [1 + 0.001 * ((7 * number + 3 * place) % 11) for number in range(40)]
        figures: dict[str, Any] = {"values": verdict, "error": verdict.error, "max_distance": verdict.error}
        times_ms = tuple(10 * factor * each for each in spread)

        def run(x: Any, name: str = name) -> str:
            return name

        trials.append(BackendTrial(name, "", run, 0.5, 1000, 4000, times_ms=times_ms, **figures))
    trials.append(BackendTrial("openvino", "not installed: pip install <openvino>"))
    return InferenceComparison(BackendRounds(tuple(trials), "<b>Model</b>", 4, True, noise or {}), {}).decide()
