"""Compute how much shorter a step would be without each part of its critical path.

A part's time on the path is only an upper bound for the saving, because another path is often nearly as long. The step
is therefore also replayed once for each part. In this replay, the part takes no time wherever it occurs. Everything
else takes the same time and has the same dependencies, and work starts earlier if it is ready earlier. Calls remain in
the same order.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from perfnb.attribution.device_work import is_in, text
from perfnb.attribution.interval_sets import union
from perfnb.gpu.critical_path import KINDS, WaitGraph, Window, path_in
from perfnb.gpu.dependencies import EVENT, LAUNCH, STREAM
from perfnb.recording.nesting import NONE, Ints
from perfnb.trace_names import CALLS

By = Literal["kind", "op", "name"]
#: The number of nanoseconds by which an event moves earlier, with one value per part, or a table of such values.
_Shift = npt.NDArray[np.float64]
#: The order of points that occur at the same time.
_RETURN, _TURN, _POINT, _WORK = range(4)


def savings_in(
    graph: WaitGraph, window: Window, by: By = "kind", most: int = 12, path: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Split a critical path into parts, and estimate how much time removing each part would save.

    Parameters
    ----------
    graph, window
        From `prepare` and `window_of`.
    by : {"kind", "op", "name"}
        The column of `path_in` by which to split the path. Segments without a value do not belong to any part.
    most : int
        The number of parts to replay. For the remaining parts, only the time on the path is returned.
    path : DataFrame, optional
        The path in the window, if it has already been computed.

    Returns
    -------
    DataFrame
        One row per part, in descending order of time: its value, ``segments``, ``path_ms`` (its time on the path, which
        is the most that removing it can save), ``share`` (of the step) and ``saves_ms`` (how much shorter the step is
        when replayed without the part, which is at most `path_ms`).
    """
    path = path_in(graph, window) if path is None else path
    sums = path.groupby(by, sort=False, observed=True)["duration_ns"].agg(["size", "sum"])
    sums = sums.sort_values("sum", ascending=False, kind="stable")
    parts = sums.index[:most].tolist()
    saved = Retiming(graph, window, by, parts).saved() if parts else np.array([])
    # Because of clock skew, work can end after the call that waited for it, and then appear to save more.
    saved = np.clip(saved, 0, sums["sum"].to_numpy()[: len(parts)]) / 1e6
    length = max(window.end - window.begin, 1)
    table = pd.DataFrame({"segments": sums["size"], "path_ms": sums["sum"] / 1e6, "share": sums["sum"] / length})
    table["saves_ms"] = pd.Series(saved, index=parts, dtype="Float64").reindex(table.index)
    if by == "kind":
        table["saves_ms"] = table["saves_ms"].mask(table.index == "unknown")
    table.index.name = by
    return table.reset_index()


class Retiming:
    """A step that is replayed once for each of several parts, without that part.

    The result is how much earlier each point in time occurs, with one column per part.
    """

    def __init__(self, graph: WaitGraph, window: Window, by: By, parts: list[str]) -> None:
        self.graph, self.window, self.count = graph, window, len(parts)
        events, work = graph.events, graph.work
        self.awaited: dict[int, list[int]] = {}
        for call, one in zip(graph.waits.waiting.tolist(), graph.waits.awaited.tolist(), strict=True):
            self.awaited.setdefault(call, []).append(one)
        # The part that each event's own time belongs to. The last entry is for positions without an event.
        part = {name: code for code, name in enumerate(parts)}
        codes, names = text(events, "name")
        of_name = np.append([part.get(str(name), NONE) for name in names], NONE).astype(np.int64)
        own = np.append(of_name[codes], NONE)
        around = np.append(graph.timeline.around, NONE)
        is_call = np.append(is_in(events, CALLS), False)
        kind = {name: np.int64(part.get(name, NONE)) for name in KINDS}
        if by == "kind":
            sorts = np.array([kind[KINDS[KINDS.index("computation") + sort]] for sort in range(3)], dtype=np.int64)
            self.of_host = np.append(np.where(is_call[:-1], kind["call"], kind["operator"]), kind["host"])
            self.of_work, self.of_launch = sorts[work.sort], np.full(len(work), kind["launch"])
            self.of_delay, self.of_wait = np.full(len(work), kind["delay"]), np.full(len(own), kind["synchronisation"])
            self.of_turn = int(kind["handover"])
        else:
            self.of_host = np.where(is_call, own[around], own) if by == "op" else own
            self.of_work = own[work.op] if by == "op" else own[work.rows]
            self.of_launch = own[work.op] if by == "op" else own[work.call]
            self.of_delay, self.of_wait, self.of_turn = self.of_work, self.of_host, NONE

    def saved(self) -> _Shift:
        """Return the number of nanoseconds by which the step ends earlier without each part."""
        graph, window, work = self.graph, self.window, self.graph.work
        points = self._points()
        time, thread = points["time"].to_numpy(), points["thread"].to_numpy()
        sort, place = points["sort"].to_numpy(), points["place"].to_numpy()
        on_host = np.flatnonzero(sort != _WORK)
        previous, gone = self._host_work(thread, time, on_host)
        # The positions of each point's dependencies among the points.
        at_work = np.full(len(work) + 1, NONE, dtype=np.int64)
        at_work[place[sort == _WORK]] = np.flatnonzero(sort == _WORK)
        shift = np.zeros((len(points) + 1, self.count))  # the last row is for points outside the window, which stay put
        done = np.zeros((len(work) + 1, self.count))
        launch = self._where(points, graph.held.thread, graph.held.launch)
        turned = self._where(points, graph.handovers.other, graph.handovers.ended)
        began = self._where(points, graph.waits.thread, graph.waits.start)
        for at in range(len(points)):
            which = place[at]
            if sort[at] == _POINT:
                shift[at] = shift[previous[at]] + gone[at]
            elif sort[at] == _WORK:
                shift[at] = self._begin(which, shift[launch[which]], done)
                done[which] = shift[at]
                if self.of_work[which] != NONE:
                    done[which, self.of_work[which]] += work.end[which] - work.start[which]
            elif sort[at] == _RETURN:
                shift[at] = self._return(which, shift[began[which]], shift[previous[at]], gone[at], done)
            else:
                shift[at] = shift[turned[which]]
                if self.of_turn != NONE:
                    shift[at, self.of_turn] += graph.handovers.time[which] - graph.handovers.ended[which]
        if window.thread != NONE:
            last: _Shift = shift[len(points) - 1]
            return last
        begun = np.flatnonzero((at_work[:-1] != NONE) & (work.end <= window.end))
        slack = (work.end[begun].max(initial=0) - work.end[begun]).astype(np.float64)
        return (done[begun] + slack[:, None]).min(axis=0) if len(begun) else np.zeros(self.count)

    def _points(self) -> pd.DataFrame:
        """Return all points in the interval that depend on another point or that another point depends on, in order."""
        graph, window, work, over = self.graph, self.window, self.graph.work, self.graph.handovers
        launched = np.flatnonzero(graph.held.launch != NONE)
        groups = [
            (_WORK, work.start, np.full(len(work), NONE), np.arange(len(work))),
            (_POINT, graph.held.launch[launched], graph.held.thread[launched], np.full(len(launched), NONE)),
            (_POINT, graph.waits.start, graph.waits.thread, np.full(len(graph.waits.rows), NONE)),
            (_RETURN, graph.waits.end, graph.waits.thread, np.arange(len(graph.waits.rows))),
            (_POINT, over.ended, over.other, np.full(len(over.time), NONE)),
            (_TURN, over.time, over.thread, np.arange(len(over.time))),
        ]
        frame = pd.concat(
            pd.DataFrame({"time": time, "thread": thread, "sort": sort, "place": place})
            for sort, time, thread, place in groups
        )
        frame = frame[(frame["time"] > window.begin) & (frame["time"] <= window.end)]
        last = pd.DataFrame({"time": [window.end], "thread": [window.thread], "sort": [_POINT], "place": [NONE]})
        frame = pd.concat((frame.sort_values(["time", "sort"], kind="stable"), last), ignore_index=True)
        plain = (frame["sort"] == _POINT) & frame.duplicated(["time", "thread", "sort"])
        return frame[~plain].reset_index(drop=True).astype(np.int64)

    def _host_work(self, thread: Ints, time: Ints, on_host: Ints) -> tuple[Ints, _Shift]:
        """Return the previous point on each point's thread, and how much host time each part takes up in between."""
        timeline = self.graph.timeline
        previous = np.full(len(time), len(time), dtype=np.int64)
        gone = np.zeros((len(time), self.count))
        for one in np.unique(thread[on_host]):
            points = on_host[thread[on_host] == one]
            before = np.concatenate(([self.window.begin], time[points][:-1]))
            previous[points[1:]] = points[:-1]
            owner, begin, end = timeline.cut(int(one), self.window.begin, self.window.end)
            part = self.of_host[owner]
            for code in range(self.count):
                of_part = union(begin[part == code], end[part == code])
                gone[points, code] = of_part.within(before, time[points])
        return previous, gone

    def _where(self, points: pd.DataFrame, thread: Ints, time: Ints) -> Ints:
        """Return the last host point on each thread at each time, or the row for points outside if there is none."""
        on_host = points[points["sort"] != _WORK]
        last = on_host.drop_duplicates(["thread", "time"], keep="last")
        known = pd.Series(last.index, index=pd.MultiIndex.from_frame(last[["thread", "time"]]))
        wanted = pd.MultiIndex.from_arrays([thread, time])
        return np.asarray(known.reindex(wanted, fill_value=len(points)), dtype=np.int64)

    def _begin(self, which: int, launched: _Shift, done: _Shift) -> _Shift:
        """Return how much earlier a piece of work can start, given its tightest dependency."""
        held, work = self.graph.held, self.graph.work
        start, by = work.start[which], held.by[which]
        earliest = np.full(self.count, np.inf)
        for reason, known, time, shift, part in (
            (LAUNCH, held.launch[which] != NONE, held.launch[which], launched, self.of_launch[which]),
            (STREAM, held.before[which] != NONE, work.end[held.before[which]], done[held.before[which]], NONE),
            (EVENT, held.awaited[which] != NONE, work.end[held.awaited[which]], done[held.awaited[which]], NONE),
        ):
            if not known:
                continue
            slack = max(int(start - time), 0)
            if reason != by:
                shift = shift + slack
            else:
                # The cause accounts for the whole delay. If the delay itself is left out, the unexplained time remains.
                shift = shift.copy()
                part = self.of_delay[which] if reason != LAUNCH else part
                if part != NONE:
                    shift[part] += max(min(int(held.explained[which]), int(start)) - int(time), 0)
            earliest = np.minimum(earliest, shift)
        return np.where(np.isfinite(earliest), earliest, 0.0)

    def _return(self, which: int, began: _Shift, host: _Shift, gone: _Shift, done: _Shift) -> _Shift:
        """Return how much earlier a blocking call can return.

        The host and everything that the call waits for limit this. `began` is the shift of the call's start, `host` is
        the shift of the previous point on its thread, and `gone` is the host time removed since that point.
        """
        waits = self.graph.waits
        start, end, awaited = int(waits.start[which]), int(waits.end[which]), waits.work[which]
        finished = min(int(self.graph.work.end[awaited]), end) if awaited != NONE else start
        waited = finished > start
        result = began + (finished - start) if waited else host.copy()
        for one in self.awaited.get(int(which), ()):
            slack = max(finished, start) - min(int(self.graph.work.end[one]), end)
            result = np.minimum(result, done[one] + max(slack, 0))
        part = self.of_wait[waits.rows[which]]
        if not waited:
            result = result + gone
        elif part != NONE:
            result[part] += end - finished
        return result
