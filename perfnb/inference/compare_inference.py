"""`compare_inference`: measure a model's speed, size and accuracy with each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.arguments import require_seconds, shown
from perfnb.bench.quality import Loss, limits_of, losses_of
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.draw.step_output import StepOutput
from perfnb.inference.backend_figures import BackendRounds, BackendTrial, Judged, comparisons, judge, table_of
from perfnb.inference.backend_view import comparison_document
from perfnb.profile.timing import Timing

if TYPE_CHECKING:
    from torch import nn

    from perfnb.draw.document import Document

#: Takes a function that is called like the model, and returns losses by name. Smaller losses are better.
Quality = Callable[[Callable[..., Any]], Mapping[str, float]]


class InferenceComparison(Documented):
    """A comparison of the latency, memory, size and output error of backends, which is displayed in notebooks."""

    def __init__(self, rounds: BackendRounds, judged: Mapping[str, Judged]) -> None:
        self._rounds, self._judged = rounds, judged

    @property
    def table(self) -> pd.DataFrame:
        """One row per backend, starting with the unmodified model (eager).

        The columns are:

        - ``verdict``: the verdict on its time (faster, slower, same or inconclusive; baseline; refused)
        - ``median_ms``, ``ci_low_ms``, ``ci_high_ms``, ``p95_ms``: the median time with its 95 % interval, and the 95th
          percentile
        - ``ratio``, ``ratio_low``, ``ratio_high``: the time relative to eager, with its simultaneous 95 % interval
        - ``values``: the verdict on its outputs (exact, within noise, reduced precision, different or not checked)
        - ``error``, ``max_distance``: the outputs' distance from float64 relative to their size, and the largest
          distance of any single number
        - ``size_bytes``: the size of its file, or of its weights when torch saves them
        - ``peak_memory_bytes``: the size of the weights plus the peak allocation of a call; ``NA`` if torch does not
          track it
        - ``setup_s``: the time for exporting, compiling, loading and the first call
        - ``decision``, ``reason``: the decision whether to use the backend, and the reason
        """
        return table_of(self._rounds.trials, self._judged)

    @property
    def samples(self) -> pd.DataFrame:
        """The time of each call in milliseconds, with one row per round and one column per backend.

        Every backend runs once in each round.
        """
        times_ms = {trial.backend: trial.times_ms for trial in self._rounds.trials if trial.times_ms}
        return pd.DataFrame(times_ms).rename_axis("round")

    def decide(self, quality: Quality | None = None, limits: Mapping[str, float] | None = None) -> InferenceComparison:
        """Decide again which backends to accept, using the same measurements and the rules of `perfnb.ab_test`.

        Parameters
        ----------
        quality : callable, optional
            A function ``quality(run)`` that measures losses by calling ``run`` like the model. It returns the losses by
            name, for example ``{"error": 0.03}``, and smaller losses are better. A backend's losses must not exceed
            those of eager, unless `limits` contains other values. If no function is passed, a backend's outputs must be
            as close to float64 as the model's own outputs, within noise.
        limits : mapping, optional
            The largest accepted values of losses, ``"median_ms"``, ``"p95_ms"`` and ``"peak_memory_bytes"``. Without
            `quality`, you can limit ``"difference"`` (``error`` in the table) instead of losses.

        Returns
        -------
        InferenceComparison

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid.
        Exception
            Any exception that `quality` raises for the unmodified model.
        """
        __tracebackhide__ = True
        bounds, first = _require(quality, limits), self._rounds.trials[0]
        own_losses = None if quality is None else _own_losses(quality, first.run)
        return InferenceComparison(self._rounds, _judged(self._rounds.trials, quality, bounds, own_losses))

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """Yield each backend's times and name, and whether it is accepted, as entries for `Journal.add`.

        The unmodified model (eager) is always accepted.
        """
        for trial in self._rounds.trials:
            if trial.times_ms:
                accepted = self._judged[trial.backend].decision in ("accept", "baseline")
                yield Timing(trial.times_ms, self._rounds.batch_size), f"backend {trial.backend}", accepted

    def _document(self) -> Document:
        return comparison_document(self._rounds, self.table, len(self.samples))


def compare_inference(
    model: nn.Module,
    example: Any,
    *,
    backends: Sequence[str] = ("eager", "compile", "bf16", "onnxruntime", "int8"),
    quality: Quality | None = None,
    limits: Mapping[str, float] | None = None,
    budget_s: float = 60.0,
) -> InferenceComparison:
    """Compare different ways to serve a model by speed, memory use, disk use, and the accuracy of the outputs.

    The measurements are interleaved: in each round, every backend serves the example once, in random order. The outputs
    of each backend are compared with those that the model computes in float64. Your model does not change, because all
    backends work on copies of it in evaluation mode.

    Parameters
    ----------
    model : Module
    example : tensor, tuple or mapping
        The arguments to call the model with. A mapping is interpreted as keyword arguments.
    backends : sequence of str
        The backends to compare. Choose from ``eager`` (the baseline, which is always included), ``compile``, ``bf16``,
        ``onnxruntime``, ``int8`` (torchao), ``channels_last``, ``folded`` (batch normalisation is folded into
        convolutions) and ``openvino``.
    quality, limits
        As for `InferenceComparison.decide`.
    budget_s : float
        The time for measurements in seconds. Exporting and compiling take additional time.

    Returns
    -------
    InferenceComparison

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    CaptureError
        If this is called inside a profiler, or if the model cannot be copied.
    Exception
        Any exception that the model itself raises.
    """
    from torch import nn

    from perfnb.inference.backend_trials import measure
    from perfnb.inference.backends import by_name

    __tracebackhide__ = True
    if not isinstance(model, nn.Module):
        raise TypeError(f"compare_inference needs a torch module, not {shown(model)}.")
    if hasattr(model, "_orig_mod"):
        raise TypeError("model is already compiled: pass the original model that was passed to torch.compile.")
    require_seconds("budget_s", budget_s)
    bounds, known = _require(quality, limits), by_name()
    names = [backends] if isinstance(backends, str) else list(backends)
    if not names or any(name not in known for name in names):
        raise ValueError(f"backends must be chosen from {', '.join(known)}, not {shown(backends)}.")
    chosen = [known[name] for name in dict.fromkeys(names) if name != "eager"]

    def losses_of_own(run: Callable[..., Any]) -> Mapping[str, float] | None:
        # This raises errors in the quality function before anything is compiled and timed.
        __tracebackhide__ = True
        return None if quality is None else _own_losses(quality, run)

    with StepOutput(), Progress() as progress:
        rounds, own_losses = measure(model, example, chosen, float(budget_s), progress, losses_of_own)
    return InferenceComparison(rounds, _judged(rounds.trials, quality, bounds, own_losses))


def _require(quality: Any, limits: Any) -> dict[str, float]:
    if quality is not None and not callable(quality):
        raise TypeError(
            "quality must be a function that accepts a function to run the model: quality=lambda run: {...}."
        )
    return limits_of(limits, judged=quality is not None, profiled=True)


def _own_losses(quality: Quality, run: Callable[..., Any]) -> Mapping[str, float]:
    """Return the unmodified model's losses. No limits apply to them, because they are themselves the limits."""
    __tracebackhide__ = True
    losses = quality(run)
    losses_of(losses, {})  # raises an error if the results are not losses
    return losses


def _judged(
    trials: Sequence[BackendTrial],
    quality: Quality | None,
    limits: Mapping[str, float],
    own: Mapping[str, float] | None,
) -> dict[str, Judged]:
    """Return the decision for each backend."""
    first, *others = trials
    pairs, judged = comparisons(trials), {first.backend: Judged("baseline", "")}
    for trial in others:
        if trial.why_not:
            judged[trial.backend] = Judged("refused", trial.why_not)
            continue
        losses: tuple[Loss, ...] | None = None
        if quality is not None:
            try:
                losses = losses_of({"baseline": own, "candidate": quality(trial.run)}, limits)
            except Exception as error:  # It worked with eager. The backend may not accept other sizes, for example.
                why = f"quality fails with this backend: {type(error).__name__}: {error}"
                judged[trial.backend] = Judged("inconclusive", why)
                continue
        judged[trial.backend] = judge(trial, pairs[trial.backend].verdict, losses, limits)
    return judged
