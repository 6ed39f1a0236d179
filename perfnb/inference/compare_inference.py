"""`compare_inference`: measure how fast, how large and how exact a model is with each backend."""

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

#: Takes a function that can be called as the model is, and returns losses by name; smaller is better.
Quality = Callable[[Callable[..., Any]], Mapping[str, float]]


class InferenceComparison(Documented):
    """A comparison of backends: latency, memory, size, and the error of the outputs. A notebook displays it."""

    def __init__(self, rounds: BackendRounds, judged: Mapping[str, Judged]) -> None:
        self._rounds, self._judged = rounds, judged

    @property
    def table(self) -> pd.DataFrame:
        """One row per backend, starting with the unmodified model (eager).

        ``verdict`` on its time (faster, slower, same, inconclusive; baseline; refused), ``median_ms`` with its 95 %
        interval ``ci_low_ms`` to ``ci_high_ms``, ``p95_ms``, ``ratio`` to eager with its simultaneous 95 % interval
        ``ratio_low`` to ``ratio_high``, ``values`` (its outputs: exact, within noise, reduced precision, different, not
        checked), ``error`` (their distance from float64, relative to their size), ``max_distance`` (the largest of a
        single number), ``size_bytes`` (of its file, or of its weights as torch saves them), ``peak_memory_bytes``
        (weights, and the most that a call allocates; ``NA`` where torch does not see it), ``setup_s`` (exporting,
        compiling, loading and the first call), ``decision`` and ``reason``.
        """
        return table_of(self._rounds.trials, self._judged)

    @property
    def samples(self) -> pd.DataFrame:
        """The milliseconds of each call, with one row per round and one column per backend.

        Every backend runs once in each round.
        """
        times_ms = {trial.backend: trial.times_ms for trial in self._rounds.trials if trial.times_ms}
        return pd.DataFrame(times_ms).rename_axis("round")

    def decide(self, quality: Quality | None = None, limits: Mapping[str, float] | None = None) -> InferenceComparison:
        """Make the decisions again from the same measurements, following the rules of `perfnb.ab_test`.

        Parameters
        ----------
        quality : callable, optional
            ``quality(run)`` measures losses by name, smaller is better, such as ``{"error": 0.03}``; ``run`` is called
            as the model is. The same losses of eager are the limit, unless `limits` has one. Without it, outputs must
            be as close to float64 as the model's own, within noise.
        limits : mapping, optional
            Largest accepted values: of losses, or without `quality` of ``"difference"`` (``error`` in the table); of
            ``"median_ms"``, ``"p95_ms"`` and ``"peak_memory_bytes"``.

        Returns
        -------
        InferenceComparison

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit.
        Exception
            Whatever `quality` raises with the unmodified model.
        """
        __tracebackhide__ = True
        bounds, first = _require(quality, limits), self._rounds.trials[0]
        own_losses = None if quality is None else _own_losses(quality, first.run)
        return InferenceComparison(self._rounds, _judged(self._rounds.trials, quality, bounds, own_losses))

    def journal_entries(self) -> Iterator[tuple[Timing, str, bool]]:
        """Yield the entries for `Journal.add`: each backend's times and name, and whether it is accepted.

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
    """Compare ways to serve a model by their speed, their memory and disk use, and the exactness of their outputs.

    The measurements are interleaved: in each round, every backend serves the example once, in random order. Each
    backend's outputs are compared with the outputs that the model computes in float64. The backends work on copies in
    evaluation mode, so your model does not change.

    Parameters
    ----------
    model : Module
    example : tensor, tuple or mapping
        The arguments that the model is called with; a mapping holds keyword arguments.
    backends : sequence of str
        Of ``eager`` (always there, the baseline), ``compile``, ``bf16``, ``onnxruntime``, ``int8`` (torchao),
        ``channels_last``, ``folded`` (batch normalisation into convolutions) and ``openvino``.
    quality, limits
        As for `InferenceComparison.decide`.
    budget_s : float
        Seconds for timing, in addition to exporting and compiling.

    Returns
    -------
    InferenceComparison

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit.
    CaptureError
        Inside a profiler, or if the model cannot be copied.
    Exception
        Whatever the model itself raises.
    """
    from torch import nn

    from perfnb.inference.backend_trials import measure
    from perfnb.inference.backends import by_name

    __tracebackhide__ = True
    if not isinstance(model, nn.Module):
        raise TypeError(f"compare_inference needs a torch module, not {shown(model)}.")
    if hasattr(model, "_orig_mod"):
        raise TypeError("model is compiled already: pass the model that torch.compile was called with.")
    require_seconds("budget_s", budget_s)
    bounds, known = _require(quality, limits), by_name()
    names = [backends] if isinstance(backends, str) else list(backends)
    if not names or any(name not in known for name in names):
        raise ValueError(f"backends must be some of these: {', '.join(known)}; not {shown(backends)}.")
    chosen = [known[name] for name in dict.fromkeys(names) if name != "eager"]

    def losses_of_own(run: Callable[..., Any]) -> Mapping[str, float] | None:
        # Faults in it are found before anything is compiled and timed.
        __tracebackhide__ = True
        return None if quality is None else _own_losses(quality, run)

    with StepOutput(), Progress() as progress:
        rounds, own_losses = measure(model, example, chosen, float(budget_s), progress, losses_of_own)
    return InferenceComparison(rounds, _judged(rounds.trials, quality, bounds, own_losses))


def _require(quality: Any, limits: Any) -> dict[str, float]:
    if quality is not None and not callable(quality):
        raise TypeError("quality must be a function that takes what runs the model: quality=lambda run: {...}.")
    return limits_of(limits, judged=quality is not None, profiled=True)


def _own_losses(quality: Quality, run: Callable[..., Any]) -> Mapping[str, float]:
    """Return the unmodified model's losses. They do not depend on `limits`, because they are the limits."""
    __tracebackhide__ = True
    losses = quality(run)
    losses_of(losses, {})  # refuses results that are not losses
    return losses


def _judged(
    trials: Sequence[BackendTrial],
    quality: Quality | None,
    limits: Mapping[str, float],
    own: Mapping[str, float] | None,
) -> dict[str, Judged]:
    """Return a decision for each backend."""
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
            except Exception as error:  # with eager it ran: the backend takes no other sizes, for example
                why = f"quality fails with it: {type(error).__name__}: {error}"
                judged[trial.backend] = Judged("inconclusive", why)
                continue
        judged[trial.backend] = judge(trial, pairs[trial.backend].verdict, losses, limits)
    return judged
