"""GPU busy time and late launches, which lab 8 has the reader compute from events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from perfnb import Profile, Ranks
from perfnb.labs.answers import as_function, as_number, close, outcome, require, slip
from perfnb.labs.exercise import Facts, Hint, all_there

WORK = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
FIRST, SECOND, TRAINING, RANK = "encoder_a", "encoder_b", "training_b", "rank_0"


#: One inside another, one that starts as another ends, one of zero length; not sorted, and not numbered in order.
MADE = pd.DataFrame(
    {
        "start_ns": [900_000, 0, 100_000, 200_000, 500_000, 400_000],
        "duration_ns": [50_000, 300_000, 50_000, 200_000, 0, 100_000],
    },
    index=[7, 3, 4, 1, 0, 9],
)


def measure_busy(answer: Any, ranks: Any = None) -> Facts:
    function, several = as_function(answer, "busy_ms(work)"), loaded_ranks(ranks)
    frames = {"made up": MADE} | {f"rank {rank}": _work(several[rank].events) for rank in several.ranks}
    cases = {}
    for name, work in frames.items():
        said = as_number(outcome(function, work.copy()), "The result of busy_ms")
        in_order = work.sort_values("start_ns", kind="stable")
        cases[name] = {
            "said": said,
            "union": _union_ms(in_order),
            "sum": float(work["duration_ns"].sum() / 1e6),
            "span": float((work["start_ns"] + work["duration_ns"]).max() - work["start_ns"].min()) / 1e6,
            "neighbours": _neighbours_ms(in_order),
            "unsorted": _union_ms(work),
        }
    return {"cases": cases}


def _union_ms(work: pd.DataFrame) -> float:
    """Busy time by a merge that takes intervals in the given order."""
    begin = work["start_ns"].to_numpy("int64")
    end = begin + work["duration_ns"].to_numpy("int64")
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0).sum() / 1e6)


def _neighbours_ms(work: pd.DataFrame) -> float:
    """Busy time by a merge that looks only at the previous interval."""
    begin = work["start_ns"].to_numpy("int64")
    end = begin + work["duration_ns"].to_numpy("int64")
    before = np.concatenate([begin[:1], end[:-1]])
    return float(np.maximum(end - np.maximum(begin, before), 0).sum() / 1e6)


def judge_busy(facts: Facts) -> None:
    for name, case in all_there(facts["cases"], 2, or_more=True).items():
        said, wanted = case["said"], case["union"]
        if close(said, wanted, 1e-4):
            continue
        for slipped, words in (
            ("sum", "It is the sum: when two overlap, the GPU is busy once, not twice."),
            ("span", "It is the whole time from the first start to the last end, gaps included."),
            ("neighbours", "A kernel can end before an earlier one: use the latest end so far, not the previous end."),
            ("unsorted", "The rows are not sorted by start."),
        ):  # fmt: skip
            if close(said, case[slipped], 1e-4):
                raise Hint(f"On the frame of {name}: {words}")
        raise Hint(f"On the frame of {name}, the result is wrong. {slip(said, wanted, 1e-3)}")


#: Launches by either kind of call, a copy overlapping kernels of another stream, a call that ends late, one that
#: launches nothing, and a kernel that runs long after its launch. Each mistake that `judge_late` knows gives a
#: different share.
LATE = pd.DataFrame(
    [
        *(("cuda_runtime", 0, 5, 1), ("kernel", 10, 90, 1)),
        *(("cuda_runtime", 20, 5, 2), ("kernel", 100, 20, 2)),
        *(("cuda_runtime", 300, 5, 3), ("gpu_memcpy", 310, 400, 3)),
        *(("cuda_driver", 330, 5, 4), ("kernel", 340, 10, 4)),
        *(("cuda_runtime", 400, 5, 5), ("kernel", 410, 10, 5)),
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
    cases = {}
    for name, events in {"made up": LATE, FIRST: first, SECOND: second}.items():
        cases[name] = {
            "said": as_number(outcome(function, events.copy()), "The result of late_share"),
            "late": _late(events),
            "runtime": _late(events, CALLS[:1]),
            "kernels": _late(events, work=WORK[:1]),
            "neighbours": _late(events, latest=False),
            "ended": _late(events, at_end=True),
        }
    return {"cases": cases}


def _late(
    events: pd.DataFrame,
    calls: tuple[str, ...] = CALLS,
    work: tuple[str, ...] = WORK,
    latest: bool = True,
    at_end: bool = False,
) -> float:
    done = events[events["category"].isin(work)].sort_values("start_ns", kind="stable")
    launches = events[events["category"].isin(calls) & events["correlation"].notna()].set_index("correlation")
    moments = (launches["start_ns"] + (launches["duration_ns"] if at_end else 0)).groupby(level=0).first()
    called = done["correlation"].map(moments)
    ends = done["start_ns"] + done["duration_ns"]
    free = (ends.cummax() if latest else ends).shift()
    return float((called > free).fillna(False).iloc[1:].mean())


def judge_late(facts: Facts) -> None:
    for name, case in all_there(facts["cases"], 3).items():
        said = case["said"]
        if abs(said - case["late"]) < 0.004:
            continue
        for slipped, words in (
            ("runtime", "Launches are in two categories, cuda_runtime and cuda_driver; one is missing."),
            ("kernels", "Copies and fills keep the GPU busy too, and are launched like kernels."),
            ("neighbours", "Other streams may still be running: the GPU is idle only after the latest end so far."),
            ("ended", "It uses the end of the call; what counts is when the host made it."),
        ):  # fmt: skip
            if abs(said - case[slipped]) < 0.004:
                raise Hint(f"On the frame {name}: {words}")
        if close(said, 1 - case["late"], 0.01):
            raise Hint(f"On the frame {name}: that is the share launched in time.")
        otherwise = "Is each launch found by its correlation, and compared with the latest end of all earlier work?"
        raise Hint(f"On the frame {name}, the result is wrong. {slip(said, case['late'], 0.005, otherwise)}")


def _work(events: pd.DataFrame) -> pd.DataFrame:
    return events.loc[events["category"].isin(WORK), ["name", "stream", "start_ns", "duration_ns"]]


def loaded_profile(given: Any, name: str) -> Profile:
    if not isinstance(given, Profile) or not str(given.meta.get("name")).startswith(name):
        raise Hint(f"Pass the profile of {name}, loaded with perfnb.load(trace_file({name!r})).")
    return given


def loaded_ranks(given: Any) -> Ranks:
    return require(given, Ranks, "Pass the ranks, as perfnb.load returned them for both files.")
