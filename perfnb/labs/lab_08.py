"""Checks for lab 8, *Reading someone else's trace*."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd

from perfnb import Profile
from perfnb.findings.gpu_facts import ALLOCATES
from perfnb.labs.answers import as_fields, as_function, as_number, evidence, result_of
from perfnb.labs.exercise import Exercise, Facts, Hint
from perfnb.labs.judging import Number, Numbers, all_there, close, hint_if, usual_slip
from perfnb.labs.made_traces import trace_file
from perfnb.recording.text import TEXT, found
from perfnb.results import Ranks

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
FIRST, SECOND, TRAINING, RANK = "reader_a", "reader_b", "training_b", "rank_0"


#: One interval is inside another, one starts when another ends, and one has zero length. They are not sorted, and they
#: are not numbered in order.
MADE = pd.DataFrame(
    {
        "start_ns": [900_000, 0, 100_000, 200_000, 500_000, 400_000],
        "duration_ns": [50_000, 300_000, 50_000, 200_000, 0, 100_000],
    },
    index=[7, 3, 4, 1, 0, 9],
)


def measure_busy(answer: Any, ranks: Any = None) -> Facts:
    function, several = as_function(answer, "busy_ms(work)"), evidence(ranks, Ranks)
    columns = ["name", "stream", "start_ns", "duration_ns"]
    frames = {"the made-up frame": MADE}
    for rank in several.ranks:
        events = several[rank].events
        frames[f"the events of rank {rank}"] = events.loc[events["category"].isin(WORK), columns]
    cases = {}
    for name, work in frames.items():
        in_order = work.sort_values("start_ns", kind="stable")
        cases[name] = {
            "said": result_of(function, work.copy()),
            "union": _union_ms(in_order),
            "sum": float(work["duration_ns"].sum() / 1e6),
            "span": float((work["start_ns"] + work["duration_ns"]).max() - work["start_ns"].min()) / 1e6,
            "neighbours": _union_ms(in_order, latest=False),
            "unsorted": _union_ms(work),
        }
    return {"cases": cases}


def _union_ms(work: pd.DataFrame, latest: bool = True) -> float:
    """Return the busy time found by merging intervals in the given order.

    Each interval is compared with the latest end so far, or with the previous interval's end if `latest` is false.
    """
    begin = work["start_ns"].to_numpy("int64")
    end = begin + work["duration_ns"].to_numpy("int64")
    before = np.concatenate([begin[:1], (np.maximum.accumulate(end) if latest else end)[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0).sum() / 1e6)


def judge_busy(facts: Facts) -> None:
    for name, case in all_there(facts["cases"], 2, or_more=True).items():
        said = Number(case["said"], case["union"], 1e-4, f"On {name}:")
        for slip, words in (
            ("sum", "It is the sum: when two events overlap, the GPU is busy once, not twice."),
            ("span", "It is the whole time from the first start to the last end, including the gaps."),
            ("neighbours", "A kernel can end before an earlier one: use the latest end so far, not the previous end."),
            ("unsorted", "The result depends on the order of the rows: sort them by their start."),
        ):  # fmt: skip
            said.slip(case[slip], words)
        said.wrong("the result is wrong.", within=1e-3)


#: Launches by both kinds of calls, a copy that overlaps kernels on another stream, a call that ends late, a call that
#: launches nothing, and a kernel that runs long after its launch. Each mistake that `judge_late` recognises leads to a
#: different share.
LATE = pd.DataFrame(
    [
        *(("cuda_runtime", 0, 5, 1), ("kernel", 10, 90, 1)),
        *(("cuda_runtime", 20, 5, 2), ("kernel", 100, 20, 2)),
        *(("cuda_runtime", 300, 5, 3), ("gpu_memcpy", 310, 400, 3)),
        *(("cuda_driver", 330, 5, 4), ("kernel", 340, 10, 4)),
        *(("cuda_runtime", 400, 5, 5), ("kernel", 410, 10, 5)),
        *(("cuda_runtime", 418, 3, 12), ("kernel", 430, 10, 12)),
        *(("cuda_runtime", 425, 4, None), ("cpu_op", 430, 1, None)),
        *(("cuda_runtime", 705, 25, 6), ("kernel", 732, 8, 6)),
        *(("cuda_driver", 880, 5, 7), ("gpu_memset", 910, 5, 7)),
        *(("cuda_runtime", 895, 5, 8), ("kernel", 916, 30, 8)),
        *(("cuda_runtime", 315, 5, 9), ("kernel", 960, 10, 9)),
        *(("cuda_driver", 1000, 5, 10), ("kernel", 1010, 10, 10)),
        *(("cuda_runtime", 1005, 5, 11), ("kernel", 1025, 5, 11)),
    ],
    columns=["category", "start_ns", "duration_ns", "correlation"],
).astype({"correlation": "Int64"})


def measure_late(answer: Any, profile: Any = None, other: Any = None) -> Facts:
    function = as_function(answer, "late_share(events)")
    first, second = loaded_profile(profile, FIRST).events, loaded_profile(other, SECOND).events
    cases = [
        {
            "frame": name,
            "said": result_of(function, events.copy()),
            "wanted": _late(events),
            "runtime": _late(events, CALLS[:1]),
            "kernels": _late(events, work=WORK[:1]),
            "neighbours": _late(events, latest=False),
            "ended": _late(events, at_end=True),
            "began": _late(events, of_work=True),
        }
        for name, events in {
            "the made-up frame": LATE,
            f"the events of {FIRST}": first,
            f"the events of {SECOND}": second,
        }.items()
    ]
    return {"cases": cases}


def _late(
    events: pd.DataFrame,
    calls: tuple[str, ...] = CALLS,
    work: tuple[str, ...] = WORK,
    latest: bool = True,
    at_end: bool = False,
    of_work: bool = False,
) -> float:
    done = events[events["category"].isin(work)].sort_values("start_ns", kind="stable")
    launches = events[events["category"].isin(calls) & events["correlation"].notna()].set_index("correlation")
    moments = (launches["start_ns"] + (launches["duration_ns"] if at_end else 0)).groupby(level=0).first()
    called = done["start_ns"] if of_work else done["correlation"].map(moments)
    ends = done["start_ns"] + done["duration_ns"]
    free = (ends.cummax() if latest else ends).shift()
    return float((called > free).fillna(False).iloc[1:].mean())


def judge_late(facts: Facts) -> None:
    every = Numbers(facts["cases"], 3, 0.0, absolute=0.004)
    for slip, words in (
        ("runtime", "Launches are in two categories, cuda_runtime and cuda_driver; one of them is missing."),
        ("kernels", "Copies and fills keep the GPU busy too, and are launched like kernels."),
        ("neighbours", "Other streams may still be running: the GPU is idle only after the latest end so far."),
        ("ended", "It uses the end of the call; what counts is when the host made it."),
        ("began", "It uses the start of the work itself; what counts is when the host made the launching call."),
    ):
        every.slip(itemgetter(slip), words)
    every.slip(lambda case: 1 - case["wanted"], "That is the share launched in time.")
    for case in facts["cases"]:
        said = Number(case["said"], case["wanted"], 0.0, f"On {case['frame']}, the result is wrong.", 0.004)
        otherwise = "Is each launch found by its correlation, and compared with the latest end of all earlier work?"
        said.wrong("", otherwise, 0.005)


def loaded_profile(given: Any, name: str) -> Profile:
    if not isinstance(given, Profile) or not str(given.meta.get("name")).startswith(name):
        raise Hint(f"Pass the profile of {name}, loaded with perfnb.load(trace_file({name!r})).")
    return given


def measure_origin(answer: Any, profile: Any = None, ranks: Any = None) -> Facts:
    said = as_fields(answer, iterations=float, batch=float, ranks=float)
    trained, several = loaded_profile(profile, TRAINING), evidence(ranks, Ranks)
    shapes = trained.events.loc[trained.events["name"] == "aten::conv2d", "shapes"]
    return {
        "said": said,
        "iterations": int(trained.layers["calls"].iloc[0]),
        "shape": json.loads(str(shapes.iloc[0]))[0],
        "ranks": int(several[several.ranks[0]].meta["trace"]["world_size"]),
        "loaded": len(several),
    }


def judge_origin(facts: Facts) -> None:
    said, (batch, *others) = facts["said"], facts["shape"]
    iterations = Number(said["iterations"], facts["iterations"], 0.0, "iterations:")
    single = "1 is the single step that perfnb made of the trace. How often was the model called?"
    iterations.slip(1, single)
    calls = "that is not how often the model was called. In training.layers, each call to the outermost layer is a "
    iterations.wrong(f"{calls}forward pass.", within=1e-6)
    images = Number(said["batch"], batch, 0.0, "batch:")
    images.slip(others, "that is another dimension of the shape: channels, or pixels per row.")
    images.slip(batch * facts["iterations"], "that is the number of images in all iterations together.")
    images.wrong("", "it is not the first dimension of the first convolution's input.")
    ranks = Number(said["ranks"], facts["ranks"], 0.0, "ranks:")
    ranks.slip(facts["loaded"], "that many are loaded, but how many took part? Look at world_size.")
    ranks.wrong("it is not the number in the traces.", within=1e-6)


def measure_faster(answer: Any, profile: Any = None) -> Facts:
    fields = as_fields(answer, op=str, share=float, saves_ms=float)
    h = loaded_profile(profile, FIRST)
    on_path = h.critical_path[h.critical_path["op"] == fields["op"]]
    on_gpu = on_path["device"].notna()
    return fields | {
        "gpu_ms": {str(op): float(ms) for op, ms in h.launches["gpu_ms"].dropna().items()},
        "kernel_ms": [float(ms) for ms in h.kernels["total_ms"]],
        "step_ms": float(h.critical_path["duration_ns"].sum() / 1e6),
        "path_gpu_ms": float(on_path.loc[on_gpu, "duration_ns"].sum() / 1e6),
        "path_host_ms": float(on_path.loc[~on_gpu, "duration_ns"].sum() / 1e6),
    }


def judge_faster(facts: Facts) -> None:
    op, gpu_ms = facts["op"], facts["gpu_ms"]
    hint_if(op not in gpu_ms, f"a.launches has no row {op!r}; op names start with aten::, and kernels are not ops.")
    hint_if(gpu_ms[op] < max(gpu_ms.values()), f"op: the work of another op took longer on the GPU than {op}'s.")
    share = Number(facts["share"], gpu_ms[op] / sum(gpu_ms.values()), 0.015, "share:")
    of_kernel = "that is the share of one kernel, but the op launches several different ones."
    share.slip(max(facts["kernel_ms"]) / sum(facts["kernel_ms"]), of_kernel)
    of_step = "that is its share of the step; give its share of GPU work."
    share.slip(gpu_ms[op] / facts["step_ms"], of_step, 0.05)
    share.wrong("it is not the op's share of GPU work.")
    saves = Number(facts["saves_ms"], facts["path_gpu_ms"] / 2, 0.0, "saves_ms:", absolute=0.005)
    waits = "the GPU would work for that much less time. Does the end of the step wait for that work?"
    saves.slip((gpu_ms[op] / 2, gpu_ms[op]), waits, 0.02)
    of_host = "that is the host's time in the op, which a faster kernel does not change."
    saves.slip((facts["path_host_ms"] / 2, facts["path_host_ms"]), of_host, 0.02)
    saves.wrong("", "only work on the critical path shortens the step. How much GPU work lies there?")


def measure_calls(answer: Any, profile: Any = None) -> Facts:
    fields = as_fields(answer, call=str, per_iteration=float, share=float)
    t = loaded_profile(profile, TRAINING)
    calls = t.events[t.events["category"].isin(CALLS)].groupby("name", observed=True)["duration_ns"]
    return fields | {
        "calls": {str(name): int(count) for name, count in calls.size().items()},
        "ms": {str(name): float(ns / 1e6) for name, ns in calls.sum().items()},
        "iterations": int(t.layers["calls"].iloc[0]),
        "step_ms": float(t.steps["wall_ms"].sum()),
        "idle_ms": float(t.gpu_idle["idle_ms"].sum()),
    }


def judge_calls(facts: Facts) -> None:
    call, ms, calls = facts["call"], facts["ms"], facts["calls"]
    hint_if(call not in ms, f"call: no event of the categories {' and '.join(CALLS)} is named {call!r}.")
    if ms[call] < max(ms.values()):
        often = " The most frequent call need not take longest." if calls[call] == max(calls.values()) else ""
        raise Hint(f"call: the host spends more time in another call than in {call}.{often}")
    per_iteration = Number(facts["per_iteration"], calls[call] / facts["iterations"], 1e-3, "per_iteration:")
    per_iteration.slip(calls[call], "that is the count in the whole trace. How many iterations does it have?")
    per_iteration.wrong("it is not the number of calls per iteration.")
    share = Number(facts["share"], ms[call] / facts["step_ms"], 0.004, "share:")
    if facts["idle_ms"]:
        idle = "that is relative to the GPU's idle time; make it relative to the whole trace's single step."
        share.slip(ms[call] / facts["idle_ms"], idle)
    share.slip((ms[call], ms[call] / 1e3), "that is its time; divide it by the step's, in the same unit.", 0.01)
    share.wrong(f"it is not the share of the host's time in {call}.")


def measure_straggler(answer: Any, ranks: Any = None) -> Facts:
    several = evidence(ranks, Ranks)
    unknown = (
        "These traces do not show how long each rank waits: pass the ranks that perfnb.load returned for both files."
    )
    hint_if(several.times["waiting_ms"].isna().any(), unknown)
    by_rank = several.times.groupby("rank")
    return {
        "said": as_fields(answer, rank=float, waits_ms=float),
        "straggler": several.straggler,
        "waiting_ms": {str(rank): [float(ms) for ms in rows] for rank, rows in by_rank["waiting_ms"]},
        "communication_ms": {str(rank): float(ms) for rank, ms in by_rank["communication_ms"].mean().items()},
    }


def judge_straggler(facts: Facts) -> None:
    rank = facts["said"]["rank"]
    waiting, talking = facts["waiting_ms"], facts["communication_ms"]
    if str(int(rank)) not in waiting or rank != int(rank):
        raise Hint(f"rank: there is no rank {rank:g} among those loaded ({', '.join(waiting)}).")
    if rank != facts["straggler"]:
        longest = talking[str(int(rank))] == max(talking.values())
        raise Hint(
            "rank: the others wait for the one that arrives *last*."
            + (" A rank with a long collective arrived early and waits inside it." if longest else "")
        )
    other = max((rows for name, rows in waiting.items() if int(name) != rank), key=sum)
    # The tolerance covers a clock offset of half a millisecond.
    said = Number(facts["said"]["waits_ms"], sum(other) / len(other), 0.04, "waits_ms:")
    said.slip(sum(other), "that is for all steps together; give it per step.", 0.02)
    said.slip(other, "that is for one step; give the mean over steps.", 0.02)
    in_turn = "the difference in communication time is not waiting: both may wait in turn."
    said.slip(abs(max(talking.values()) - min(talking.values())), in_turn, 0.02)
    whole = "that is all of a rank's communication; how much of it is waiting?"
    said.slip(talking.values(), whole, 0.005)
    own = waiting[str(int(rank))]
    itself = f"that is how long rank {int(rank)} itself waits; how long does the other rank wait for it?"
    said.slip((sum(own) / len(own), sum(own), *own), itself, 0.02)
    said.wrong("it is not the other rank's waiting time.", within=0.02)


def measure_machines(answer: Any, profile: Any = None, other: Any = None) -> Facts:
    compared = loaded_profile(profile, FIRST).compare(loaded_profile(other, SECOND))
    by_op = compared.by_op.groupby(compared.by_op["op"].astype(TEXT))[["gpu_ms_a", "gpu_ms_b"]].sum()
    return as_fields(answer, op=str, op_ratio=float, busy_ratio=float) | {
        "gpu_ms": {str(op): [float(row.iloc[0]), float(row.iloc[1])] for op, row in by_op.iterrows()},
        "busy_ms": [float(p.gpu_steps["busy_ms"].mean()) for p in (profile, other)],
        "wall_ms": [float(p.steps["wall_ms"].mean()) for p in (profile, other)],
    }


def judge_machines(facts: Facts) -> None:
    op, grew = facts["op"], {name: b - a for name, (a, b) in facts["gpu_ms"].items()}
    hint_if(op not in grew, f"op: compared.by_op has no op {op!r}; the names are in the column op.")
    if grew[op] < max(grew.values()):
        which = "shrank" if grew[op] < 0 else "grew less than another op's"
        raise Hint(f"op: the GPU time of {op}, summed over its shapes, {which} from the first trace to the second.")
    for name, (first, second) in (("op_ratio", facts["gpu_ms"][op]), ("busy_ratio", facts["busy_ms"])):
        ratio = Number(facts[name], second / first, 0.01, f"{name}:")
        if name == "busy_ratio":
            lengths = "that is the ratio of step lengths; how long is the GPU busy in them?"
            ratio.slip(facts["wall_ms"][1] / facts["wall_ms"][0], lengths)
        ratio.slip(second - first, "that is the difference in ms; give the ratio.")
        ratio.wrong("it is not the second trace's time divided by the first's.")


#: The hint for an answer that names another lever than the one with the largest bound, in the order of the lab's table.
_WHY_NOT = {
    "faster kernels": "How much of the GPU's work is on the critical path?",
    "fewer launches": "What does the GPU do for most of the step, and what is on the critical path?",
    "no allocation": "In which call does the host spend its time while the GPU is idle?",
    "hidden communication": "Which bound is the largest? The GPU mostly does one kind of work, and little of it "
    "overlaps.",
}
LEVERS = tuple(_WHY_NOT)


def measure_verdict(answer: Any, profile: Any = None, training: Any = None, ranks: Any = None) -> Facts:
    names = (FIRST, TRAINING, RANK)
    if not isinstance(answer, Mapping) or any(name not in answer for name in names):
        raise Hint(f"The answer must be a dictionary with {', '.join(names)}, each a lever and a number of ms.")
    said = {}
    for name in names:
        try:
            lever, at_most = answer[name]
        except (TypeError, ValueError):
            raise Hint(f"{name}: give two things, a lever and the most ms it can save.") from None
        hint_if(lever not in LEVERS, f"{name}: there is no lever {lever!r}; choose one of {', '.join(LEVERS)}.")
        said[name] = [lever, as_number(at_most, name)]
    several = evidence(ranks, Ranks)
    own = several[several.ranks[0]]
    profiles = dict(zip(names, (loaded_profile(profile, FIRST), loaded_profile(training, TRAINING), own), strict=True))
    return {
        "said": said,
        "bounds": {name: _bounds(given) for name, given in profiles.items()},
        "idle_ms": {name: _not_busy_ms(given) for name, given in profiles.items()},
        "wall_ms": {name: float(given.steps["wall_ms"].mean()) for name, given in profiles.items()},
        "communication_ms": float(own.gpu_steps["communication_ms"].mean()),
        "steps": len(own.steps),
    }


def _bounds(profile: Profile) -> dict[str, float]:
    """Return the maximum time that each of `LEVERS` can save, in milliseconds per step."""
    path, done, events = profile.critical_path, profile.gpu_steps, profile.events
    steps = len(profile.steps)
    late = float(profile.gpu_idle["host_ms"].sum()) / steps
    calls = events.loc[events["category"].isin(CALLS), ["name", "duration_ns"]]
    in_calls = float(calls.loc[found(calls["name"], ALLOCATES.match), "duration_ns"].sum()) / 1e6 / steps
    allocating = min(late, in_calls)
    on_gpu = float(path.loc[path["device"].notna(), "duration_ns"].sum()) / 1e6 / steps
    exposed = float((done["communication_ms"] - done["overlap_ms"]).sum()) / steps
    return dict(zip(LEVERS, (on_gpu, late - allocating, allocating, exposed), strict=True))


def _not_busy_ms(profile: Profile) -> float:
    """Return the time per step during which the GPU does nothing, in milliseconds."""
    return float((profile.steps["wall_ms"].sum() - profile.gpu_steps["busy_ms"].sum()) / len(profile.steps))


def judge_verdict(facts: Facts) -> None:
    for name, (lever, ms) in all_there(facts["said"], 3).items():
        bounds, wall = facts["bounds"][name], facts["wall_ms"][name]
        right = max(LEVERS, key=bounds.__getitem__)
        hint_if(lever != right, f"{name}: {lever} is not the lever with the largest bound. {_WHY_NOT[right]}")
        low = bounds[right]
        # An answer may also count the idle time at both ends of the step.
        high = max(low, facts["idle_ms"][name]) if right in LEVERS[1:3] else low
        if 0.99 * low <= ms <= 1.01 * high:
            continue
        if close(ms, wall, 0.005):
            raise Hint(f"{name}: that is the whole step, but no step takes zero time. What would remain?")
        if right == LEVERS[3] and name == RANK and close(ms, facts["communication_ms"], 0.01):
            raise Hint(f"{name}: that is all communication, but overlapped communication cannot be saved.")
        if name == RANK and close(ms, facts["steps"] * low, 0.01):
            raise Hint(f"{name}: that is for all steps; give it per step.")
        if right == LEVERS[2] and high < ms < wall:
            raise Hint(f"{name}: for part of that time the GPU was busy, and that work remains.")
        raise Hint(f"{name}: the lever is right, but the bound is not. {usual_slip(ms, (low + high) / 2, 0.05)}")


def measure_cures(answer: Any, ranks: Any = None) -> Facts:
    frame = evidence(ranks, Ranks).collectives
    said = as_fields(answer, balance_ms=float, network_ms=float)
    columns = ["ms", "exposed_ms", "waiting_ms"]
    by_rank = frame[columns].astype(float).fillna(0.0).groupby(frame["rank"]).sum()
    return {"said": said, "ranks": {str(rank): row for rank, row in by_rank.to_dict("index").items()}}


def judge_cures(facts: Facts) -> None:
    own, *others = (all_there(facts["ranks"], 2, or_more=True)[rank] for rank in sorted(facts["ranks"], key=int))
    waiting, exposed, every = own["waiting_ms"], own["exposed_ms"], own["ms"]
    balance = Number(facts["said"]["balance_ms"], waiting, 0.02, "balance_ms:")
    balance.slip([other["waiting_ms"] for other in others], "that is how long another rank waits; rank 0 waits for it.")
    balance.slip(waiting + sum(other["waiting_ms"] for other in others), "that is the waiting of all ranks together.")
    balance.slip(exposed - waiting, "that is what remains when nobody waits any more: are the two swapped?")
    balance.slip(exposed, "a perfect balance leaves the transfers: how much of this is waiting?")
    balance.wrong("it is not rank 0's waiting in its collectives.")
    network = Number(facts["said"]["network_ms"], exposed - waiting, 0.02, "network_ms:")
    network.slip(exposed, "that includes rank 0's waiting, and no network makes the last rank come earlier.")
    network.slip((every, every - waiting), "that includes a collective that is already hidden behind computation.")
    network.slip(
        [other["exposed_ms"] - other["waiting_ms"] for other in others], "that is the figure of another rank.", 0.002
    )
    network.wrong("it is not the exposed time of rank 0 without its waiting.")


#: The kinds of memory in the names of copies, and the trace's number of steps with each kind.
KINDS, COPIED_STEPS = ("Pageable", "Pinned"), 3


def measure_on_their_way(answer: Any) -> Facts:
    said = as_fields(answer, pageable=float, pinned=float, saves_ms=float)
    events = json.loads(gzip.decompress(trace_file("copies").read_bytes()))["traceEvents"]
    copied = {
        kind: [
            [float(event["args"]["bytes"]), float(event["dur"])]
            for event in events
            if event["name"] == f"Memcpy HtoD ({kind} -> Device)"
        ]
        for kind in KINDS
    }
    back = [[float(event["args"]["bytes"]), float(event["dur"])] for event in events if "DtoH" in event["name"]]
    steps_ms = [event["dur"] / 1e3 for event in events if event["name"].startswith("ProfilerStep")]
    return {"said": said, "copied": copied, "back": back, "steps_ms": steps_ms}


def judge_on_their_way(facts: Facts) -> None:
    said, copied, back = facts["said"], all_there(facts["copied"], len(KINDS)), facts["back"]
    took_us = {kind: sum(us for _, us in copied[kind]) for kind in KINDS}
    rates = {kind: sum(size for size, _ in copied[kind]) / took_us[kind] / 1e3 for kind in KINDS}
    for kind, other in (KINDS, KINDS[::-1]):
        rate = Number(said[kind.lower()], rates[kind], 0.005, f"{kind.lower()}:")
        rate.slip(rates[other], "that is the bandwidth from the other kind of memory.")
        mean = "that is the mean of the copies' bandwidths, where 2 KiB count as much as 8 MiB: divide sums."
        rate.slip(sum(size / us for size, us in copied[kind]) / len(copied[kind]) / 1e3, mean)
        rate.slip(rates[kind] * 1e9 / 2**30, "that is in GiB/s; 1 GB is 10⁹ bytes.")
        rate.slip(rates[kind] * 8, "that is in gigabits per second; a byte has 8 bits.")
        large = max(size for size, _ in copied[kind])
        cards_us = sum(us for size, us in copied[kind] if size == large)
        cards = large * sum(size == large for size, _ in copied[kind]) / cards_us / 1e3
        rate.slip(cards, "that leaves out the labels, which are also copied to the GPU.")
        to_host = "that also counts the copies from the GPU to the host, which have DtoH in their names."
        every = [*copied[kind], *back]
        rate.slip(sum(size for size, _ in every) / sum(us for _, us in every) / 1e3, to_host)
        rate.wrong("it is not the bytes of these copies divided by their time.")
    saved_ms = (took_us["Pageable"] - took_us["Pinned"]) / 1e3
    saves = Number(said["saves_ms"], saved_ms / COPIED_STEPS, 0.01, "saves_ms:")
    saves.slip(saved_ms, "that is for all three steps; give it per step.")
    saves.slip(saved_ms / (2 * COPIED_STEPS), "only three of the six steps copy from each kind of memory.")
    all_gone = "that is the whole time of the copies from pageable memory, but pinned copies take time, too."
    saves.slip((took_us["Pageable"] / 1e3 / COPIED_STEPS, took_us["Pageable"] / 1e3), all_gone)
    slow, fast = facts["steps_ms"][:COPIED_STEPS], facts["steps_ms"][COPIED_STEPS:]
    whole = "that is how much shorter the step becomes; how much of that is due to the copies to the GPU?"
    saves.slip((sum(slow) - sum(fast)) / COPIED_STEPS, whole, 0.05)
    saves.slip(1 - took_us["Pinned"] / took_us["Pageable"], "that is a share; give milliseconds.")
    saves.wrong("it is not the difference between the two kinds of copies, per step.")


EXERCISES = (
    Exercise("8.1", "What produced these traces?", measure_origin, judge_origin),
    Exercise("8.2", "Busy", measure_busy, judge_busy),
    Exercise("8.3", "Late launches", measure_late, judge_late),
    Exercise("8.4", "A faster kernel", measure_faster, judge_faster),
    Exercise("8.5", "Idle again", measure_calls, judge_calls),
    Exercise("8.6", "The straggler", measure_straggler, judge_straggler),
    Exercise("8.7", "Two machines", measure_machines, judge_machines),
    Exercise("8.8", "A verdict", measure_verdict, judge_verdict),
    Exercise("8.9", "Two cures for one wait", measure_cures, judge_cures),
    Exercise("8.10", "Cards on their way", measure_on_their_way, judge_on_their_way),
)
