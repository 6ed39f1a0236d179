"""Provide `profile_step`, and the code that it shares with the magic: capture with progress, then read the trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from perfnb.draw.progress import Progress, ProgressLine
from perfnb.draw.step_output import StepOutput
from perfnb.failures import keeps_nothing
from perfnb.profile.kept_step import KeptStep, kept_call
from perfnb.profile.profile import Profile
from perfnb.shell import in_notebook

if TYPE_CHECKING:
    from torch import nn

    from perfnb.recording.recording import Recording
    from perfnb.step.capture import Capture

    Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
    Stacks = bool | Literal["auto"]


#: The number of seconds between telemetry samples during a profile.
WATCH_INTERVAL_S = 0.1


@keeps_nothing
def profile_step(
    step: Callable[..., Any],
    batches: Iterable[Any] | None = None,
    *,
    model: Models | None = None,
    warmup: int | None = None,
    steps: int | None = None,
    traced: int = 3,
    budget_s: float = 30.0,
    memory: bool = True,
    flops: bool = True,
    stacks: Stacks = "auto",
    watch: bool = False,
    recompile: bool = False,
    name: str | None = None,
) -> Profile:
    """Run a step repeatedly and find out where its time goes.

    If torch uses more threads than the process has cores, or far fewer, a few steps are also run with one thread per
    core (in the pass ``trial``). The number of threads is restored afterwards.

    Output printed by the step is limited to the first ten lines, plus the last ten if the step raises.

    Parameters
    ----------
    step : callable
        A function that runs one step. It is called as ``step()`` or, if `batches` are given, as ``step(batch)``. A
        batch can be any object.
    batches : iterable, optional
        The batches for the steps. The time spent waiting for them is the phase ``data``. When the batches run out,
        iteration starts again.
    model : Module, list of Module, or dict of name to Module, optional
        The models to break down into layers. By default, these are all modules that the step calls, named after the
        variables that `step` uses.
    warmup, steps, traced : int, optional
        The number of warm-up steps, of timed steps, and the maximum number of traced steps. By default, the warm-up
        lasts until the step time is steady, and between 20 and 200 steps are timed, depending on how much they vary.
    budget_s : float
        The time limit in seconds for all steps together. Each pass runs at least one step, regardless of the limit. If
        steps are long, timing has priority: six steps are timed before a second one is traced.
    memory, flops : bool
        Whether to run the counted pass. If `memory` is true, every allocation is recorded in two steps, the first of
        which is a lead-in. If `flops` is true, every op in one step is counted.
    stacks : bool or "auto"
        If ``True``, Python code is sampled in a separate pass that barely slows the step (see ``python``, ``lines`` and
        the flame graph), and Python calls are recorded in the trace (see ``events``), which is expensive. If
        ``"auto"``, calls are not recorded, and Python code is sampled only if more than 15 % of the step is the host's
        own code. Sampling then takes at most 1.5 s, which is part of the budget, and allows findings to name the lines
        responsible. If ``False``, Python code is never sampled. The ranks of a job are only sampled on request.
    watch : bool
        Whether to record hardware telemetry ten times per second during the run, like `perfnb.watch` (see ``samples``).
    recompile : bool
        Whether to recompile models that ``torch.compile`` compiled as a whole, with the settings of
        `compile_for_profiling`, and trace the resulting code. This makes the layers inside compiled models visible. All
        other passes run your own code. Recompilation takes as long as the original compilation and is not included in
        the budget.
    name : str, optional
        The title of the profile.

    Returns
    -------
    Profile

    Raises
    ------
    TypeError
        If `step` is not callable, if `batches` is a single batch, or if `step` cannot be called with these batches.
    CaptureError
        If another profiler is active, if `batches` run out, if the step itself runs a profiler, or if this version of
        torch does not support `recompile`.
    Exception
        Any exception raised by `step` or `batches`, after perfnb has removed everything it installed.
    """
    from perfnb.arguments import require_flag, require_stacks
    from perfnb.step.budget import Plan

    __tracebackhide__ = True
    require_stacks(stacks)
    require_flag("watch", watch)
    plan = Plan(
        warmup=warmup,
        steps=steps,
        traced=traced,
        budget_s=budget_s,
        memory=memory,
        flops=flops,
        recompile=recompile,
    )
    return profile_call(step, batches, plan=plan, model=model, stacks=stacks, watch=watch, name=name)


def profile_call(
    step: Callable[..., Any],
    batches: Any = None,
    *,
    plan: Any,
    model: Models | None = None,
    stacks: Stacks = False,
    watch: bool = False,
    name: str | None = None,
    guard: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    line: ProgressLine | None = None,
) -> Profile:
    """Run `profile_step` according to a plan. `guard` wraps the step, and `line` displays the progress."""
    from perfnb.step.checks import require_name, require_steps
    from perfnb.step.namespace import chosen_models, namespace_of, step_variables

    __tracebackhide__ = True
    require_steps({"step": step}, batches, "profile_step(step, loader)")
    require_name(name)
    models, names = chosen_models(model)
    variables = namespace_of(step)
    return run_profile(
        step if guard is None else guard(step),
        batches,
        plan=plan,
        models=models,
        namespace=step_variables(step, names, batches),
        labels=[name for name, value in names.items() if variables.get(name) is not value],
        used=variables,
        stacks=stacks,
        watch=watch,
        name=name or str(getattr(step, "__name__", "step")),
        kept=kept_call(step, batches, models, names),
        line=line,
    )


def run_profile(
    step: Callable[..., Any],
    batches: Any,
    *,
    plan: Any,
    models: list[nn.Module] | None,
    namespace: Mapping[str, Any],
    labels: Collection[str] = (),
    used: Mapping[str, Any] | None = None,
    stacks: Stacks = False,
    watch: bool = False,
    name: str = "step",
    quiet: bool = False,
    kept: KeptStep | None = None,
    line: ProgressLine | None = None,
) -> Profile:
    """Capture a step with a progress bar, then read the trace. Used by `profile_step` and its magic.

    `namespace` provides the names of models, `used` contains the variables that the step uses, `kept` finds the step
    again later, and `line` displays the progress.
    """
    from perfnb.findings.rules.host import WORTH_SAMPLING
    from perfnb.interrupts import InterruptGate
    from perfnb.step.checks import note_on_meta
    from perfnb.step.environment import place_in_job
    from perfnb.step.pass_order import capture_step
    from perfnb.step.to_recording import recording_of, with_later
    from perfnb.telemetry.watcher import Watcher

    __tracebackhide__ = True
    made: list[Profile] = []

    def as_profile(recording: Recording) -> Profile:
        call = {"call": dict(kept.call)} if kept is not None and kept.call else {}
        return Profile(replace(recording, meta={**recording.meta, **call}), kept)

    def worth_sampling(capture: Capture) -> bool:
        made.append(as_profile(recording_of(capture, name)))
        return made[0]._analysis.host_share > WORTH_SAMPLING

    # The other ranks of a job would wait for steps that only this rank runs.
    asks = stacks == "auto" and (place_in_job() or {}).get("world_size", 1) == 1
    # This is always open because it handles interrupts that Python drops.
    with InterruptGate() as gate, gate.opened(), Progress(enabled=not quiet, line=line) as progress:
        with Watcher(WATCH_INTERVAL_S) if watch else nullcontext() as watcher, StepOutput():
            try:
                capture = capture_step(
                    step,
                    batches,
                    plan=plan,
                    models=models,
                    namespace=namespace,
                    labels=labels,
                    stacks=stacks != "auto" and bool(stacks),
                    worth_sampling=worth_sampling if asks else None,
                    progress=progress,
                )
            except (RuntimeError, NotImplementedError) as error:
                if note := note_on_meta(used or {}):
                    error.add_note(note)
                raise
        if not made:
            profile = as_profile(recording_of(capture, name, watcher))
        elif capture.sampler is None and watcher is None:
            profile = made[0]  # reuses the results of its analysis
        else:
            profile = as_profile(with_later(made[0]._recording, capture, watcher))
        failure = capture.failure
        if failure is None:
            return _under_right_ceilings(profile)
    if in_notebook() and not quiet:
        profile._ipython_display_()
        failure.add_note("perfnb: the incomplete profile up to here is shown above.")
    else:
        failure.add_note(f"perfnb: the incomplete profile up to here:\n\n{profile}")
    raise failure


def _under_right_ceilings(profile: Profile) -> Profile:
    """Measure the machine's ceilings again if a layer or op in the profile ran faster than they allow.

    If the new ceilings are still too low, use the rate that the layer or op achieved.
    """
    from perfnb.step.ceilings import measure_ceilings

    roofline, recording = profile._analysis.roofline, profile._recording
    if roofline is None or not roofline.refuted:
        return profile
    on = recording.meta["ceilings"]["on"]
    ceilings = {"on": on, **measure_ceilings(roofline.peaks, on, refresh=True)}
    return Profile(replace(recording, meta={**recording.meta, "ceilings": ceilings}), profile._kept)
