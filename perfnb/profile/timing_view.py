"""Create a document about step times: how long a step takes, how certain this is, and the time of every step."""

from __future__ import annotations

from collections.abc import Iterator

from perfnb import quantities as fmt
from perfnb.draw.document import Axis, Document, Figure, Line, Section, Series, State, Strip, Verdict
from perfnb.draw.palette import BLUE, Mark
from perfnb.profile.timing import noise_sentences
from perfnb.stats.step_times import StepTimes


def timing_document(timing: StepTimes) -> Document:
    """Return a document that starts with the step time and its interval."""
    return Document(
        "step time",
        verdict=_verdict(timing),
        figures=tuple(_figures(timing)),
        facts=tuple(_facts(timing)),
        sections=tuple(_sections(timing)) if len(timing.samples_ms) > 1 else (),
        notes=tuple(noise_sentences(timing.noise)),
    )


def _verdict(timing: StepTimes) -> Verdict:
    if not timing.steps:
        return Verdict("none", "No step was timed")
    state: State = "good"
    why, advice = "", ""
    if timing.steady is False:
        state, why = "open", "The steps had not reached a steady state when the warm-up ended."
    if timing.wanted is not None and timing.steps < timing.wanted:
        state, why = "open", f"The budget ended before the required {timing.wanted:,} steps had run. {why}".strip()
        advice = "Raise budget_s."
    return Verdict(state, f"A step takes {fmt.interval(timing.median_ms, timing.ci_ms)}", why, advice)


def _figures(timing: StepTimes) -> Iterator[Figure]:
    if not timing.steps:
        return
    yield Figure("step", timing.median_ms, "ms", timing.ci_ms, timing.basis, timing.samples_ms)
    if timing.throughput_per_s is not None:
        yield Figure("throughput", timing.throughput_per_s, "samples/s")
    for share in (0.99, 0.95, 0.9):
        if (slow := timing.quantile_ms(share)) is not None:
            yield Figure(f"p{round(100 * share)}", slow, "ms")
            break


def _facts(timing: StepTimes) -> Iterator[str]:
    if timing.warmup_ms:
        end = {True: "steady after", False: "not steady after", None: "too few steps to determine if steady after"}
        yield f"{end[timing.steady]} {fmt.counted(len(timing.warmup_ms), 'warm-up step')}"
    if timing.outliers.count:
        yield str(timing.outliers) if timing.block == 1 else str(timing.outliers).replace(" steps:", " blocks:")


def _sections(timing: StepTimes) -> Iterator[Section]:
    in_blocks = timing.block > 1
    unit = f"block of {timing.block:,} steps" if in_blocks else "step"
    look, time = Mark("block" if in_blocks else "step", BLUE, "█", "solid"), Axis("time of a step", "ms")
    median, places = timing.median_ms or 0.0, range(1, len(timing.samples_ms) + 1)
    yield Strip(f"Every {unit}", time, ((look, timing.samples_ms),), ("median", median))
    yield Series("In order", Axis(unit, "count"), time, places, (Line(look, timing.samples_ms),), {"median": median})
