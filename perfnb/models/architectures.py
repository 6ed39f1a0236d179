"""`compare_architectures`: compare models on one batch, and show each model's cost and where its time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from perfnb.arguments import require_flag, require_seconds, shown, storable
from perfnb.bench.design import planned_rounds, warm_up
from perfnb.draw.document import Document
from perfnb.draw.documented import Documented
from perfnb.draw.progress import Progress
from perfnb.models.architecture_tables import architecture_tables
from perfnb.models.architectures_view import architectures_document
from perfnb.profile.profile import Profile
from perfnb.profile.profiling import run_profile
from perfnb.profile.summary import device_words
from perfnb.profile.timing import noise_sentences

if TYPE_CHECKING:
    from torch import nn

#: Relative difference up to which two times count as the same.
EQUAL_WITHIN = 0.02
#: Share of the budget for timing the models side by side. The rest is for one profile per model.
TIMED_SHARE = 0.6


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ArchitectureComparison(Documented):
    """A comparison of several models, with each model's cost and where its time goes. Notebooks display it.

    Attributes
    ----------
    table : DataFrame
        Each model's cost, with one row per name (the index), in the order of `models`. Times are medians with 95 %
        intervals, and ``intensity`` is in FLOP/byte. Any value may be NA.
    shares : DataFrame
        Where the time goes: ``name``, ``by`` (kind of layer, or phase), ``part``, ``ms``, ``share``. For each name and
        ``by`` the shares add up to 1, and the times to the median.
    ratios : DataFrame
        One row per pair: ``a``, ``b``, ``ratio`` (the time of b divided by the time of a) with its simultaneous
        interval ``ci_low`` to ``ci_high``, ``p_holm``, ``verdict`` on b, and ``smallest_detectable`` (relative).
    layers : mapping of str to DataFrame
        Each model's table ``layers``, with an additional column ``kind``.
    training : bool
        Whether the loss and the backward pass were included.
    device, batch : str
        The device, and the shapes of the batch.
    rounds : int
        The number of measurements per model.
    equal_within : float
        The relative difference up to which two times count as the same. For example, 0.02 is 2 %.
    notes : tuple of str
        Caveats about the figures.
    profiles : mapping of str to Profile
        The profile of each model.
    """

    table: pd.DataFrame
    shares: pd.DataFrame
    ratios: pd.DataFrame
    layers: Mapping[str, pd.DataFrame]
    training: bool
    device: str
    batch: str
    rounds: int
    equal_within: float
    notes: tuple[str, ...] = ()
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    def _document(self) -> Document:
        return architectures_document(self)


def compare_architectures(
    models: Mapping[str, nn.Module | tuple[nn.Module, Any]],
    batch: Any = None,
    *,
    training: bool = True,
    loss: Callable[..., Any] | None = None,
    budget_s: float = 30.0,
) -> ArchitectureComparison:
    """Compare models on one batch: time, memory, FLOPs, and where the time goes.

    The measurements are interleaved: in each round, every model runs once, in random order, so that changes in the
    machine's speed affect all models equally. Layers, memory and FLOPs come from a profile of each model. Parameters
    and buffers are restored, but gradients are not.

    Parameters
    ----------
    models : dict of str to Module or (Module, batch)
        The models by name. A model that is passed with its own batch runs on that batch.
    batch : tensor, tuple or mapping
        A tensor is the models' input. In a tuple, the last element is the target, and the other elements are inputs. A
        mapping contains keyword arguments.
    training : bool
        If ``True``, a step consists of forward, loss and backward. If ``False``, it is only forward, without gradients
        and in evaluation mode.
    loss : callable, optional
        A function that is called as ``loss(output, target)``, as ``loss(output, batch)`` if the batch is a mapping, or
        as ``loss(output)`` if the batch is a single tensor. The default is ``output.loss`` if it exists, and otherwise
        the sum of the outputs.
    budget_s : float
        The time limit in seconds for all models. Each model runs at least about twenty times.

    Returns
    -------
    ArchitectureComparison

    Raises
    ------
    TypeError, ValueError
        If there are no models, or if one of them is not a module or has no batch.
    CaptureError
        Inside a profiler.
    Exception
        Any exception that a model or the loss raises, after perfnb has removed all its hooks.
    """
    from perfnb.bench.rounds import Bench
    from perfnb.memory.estimate.model_step import left_as_they_were, model_step
    from perfnb.step.budget import Plan
    from perfnb.step.data_waits import common_size
    from perfnb.step.environment import describe_environment

    __tracebackhide__ = True
    require_seconds("budget_s", budget_s)
    require_flag("training", training)
    pairs = _with_batches(models, batch)
    steps = {name: model_step(model, own, loss, training=training) for name, (model, own) in pairs.items()}
    start = time.perf_counter()
    chosen = [model for model, _ in pairs.values()]
    with Progress() as progress, left_as_they_were(chosen, training=training):
        with Bench(list(steps.values()), progress=progress) as bench:
            steady = warm_up(bench, start, TIMED_SHARE * budget_s)
            _, samples = planned_rounds(bench, start, TIMED_SHARE * budget_s, EQUAL_WITHIN)
        left_s = max(1.0, start + budget_s - time.perf_counter()) / len(steps)
        profiles = {
            name: run_profile(
                step,
                None,
                plan=Plan(warmup=1, steps=1, traced=3, budget_s=left_s),
                models=[pairs[name][0]],
                namespace={name: pairs[name][0]},
                labels=[name],
                name=name,
                quiet=True,
            )
            for name, step in steps.items()
        }
    times_ms = {name: times.tolist() for name, times in zip(steps, samples, strict=True)}
    tables = architecture_tables(
        {name: profile._summary for name, profile in profiles.items()},
        times_ms,
        {name: common_size(own) for name, (_, own) in pairs.items()},
        EQUAL_WITHIN,
    )
    return ArchitectureComparison(
        **tables,
        rounds=samples.shape[1],
        equal_within=EQUAL_WITHIN,
        training=training,
        device=device_words(describe_environment()),
        batch=_batch_words(batch),
        notes=(
            *(() if steady is not False else ("Not all models had reached steady state when the warm-up ended.",)),
            *noise_sentences(bench.conditions.facts),
        ),
        profiles=profiles,
    )


def _with_batches(models: Any, batch: Any) -> dict[str, tuple[nn.Module, Any]]:
    """Return each model with its batch."""
    from torch import nn

    if not isinstance(models, Mapping) or not models:
        raise TypeError("models must be a non-empty dict of names to models, or to pairs (model, batch).")
    pairs: dict[str, tuple[nn.Module, Any]] = {}
    for name, value in models.items():
        model, own = value if isinstance(value, tuple) and len(value) == 2 else (value, batch)
        if not isinstance(model, nn.Module):
            raise TypeError(f"models[{shown(name)}] must be a torch module, not {type(model).__name__}.")
        if own is None:
            raise ValueError(f"models[{shown(name)}] has no batch: pass one for all models, or a pair (model, batch).")
        pairs[storable(str(name))] = (model, own)
    return pairs


def _batch_words(batch: Any) -> str:
    """Return the shapes of the batch's tensors."""
    from perfnb.step.data_waits import tensors_in

    shapes = [" × ".join(map(str, tensor.shape)) or "1" for tensor in tensors_in(batch)]
    return ", ".join(shapes) if shapes else "each model's own"
