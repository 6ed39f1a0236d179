"""The display of host profiles: what took most, what changed most, and by package."""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import perfnb
from perfnb.draw import palette
from perfnb.draw.document import Picture, Table
from perfnb.flame.comparison import diff_records
from perfnb.flame.data import flame_data, package_of
from perfnb.flame.picture import _LEVELS, flame_section
from perfnb.flame.step_stacks import StepStacks, step_stacks
from perfnb.flame.view import stacks_document
from perfnb.stacks.formats import HostRecord
from perfnb.stacks.tree import CallTree, Function
from tests.findings.test_host_time import sampled
from tests.pages import boxes, spaced
from tests.recordings import ByHand
from tests.samples import texts
from tests.samples.flame import DOCUMENTS
from tests.stacks.test_host_profiles import COLLAPSED, SPEEDSCOPE, figures, written


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (COLLAPSED, "relu takes 64 % of the samples itself, 7 of 11"),
        (json.dumps(SPEEDSCOPE), "main (train.py:1) takes 40 % of the time itself, 4.00 ms of 10.0 ms"),
        (
            json.dumps(SPEEDSCOPE).replace("train.py", json.dumps(r"C:\my\code\train.py")[1:-1]),
            "main (code/train.py:1) takes 40 % of the time itself, 4.00 ms of 10.0 ms",
        ),
        (
            json.dumps(SPEEDSCOPE).replace("milliseconds", "bytes"),
            "main (train.py:1) takes 40 % of the memory itself, 4 B of 10 B",
        ),
        (
            json.dumps(SPEEDSCOPE).replace("milliseconds", "none"),
            "main (train.py:1) itself takes the most: 40 % of the whole",
        ),
        (marshal.dumps({}), "No function took any time"),
    ],
)
def test_the_function_that_took_most_is_the_answer(tmp_path: Path, file: str | bytes, says: str) -> None:
    assert perfnb.load(written(tmp_path, file))._document().verdict.sentence == says


@pytest.mark.parametrize("count", [2000, 2001])
def test_up_to_two_thousand_functions_are_rows(tmp_path: Path, count: int) -> None:
    found = {("a.py", place, f"step_{place}"): (1, 1, 2.0**-place, 1.0, {}) for place in range(1, count + 1)}
    document = perfnb.load(written(tmp_path, marshal.dumps(found), "a.prof"))._document()
    (table,) = (section for section in document.sections if isinstance(section, Table))
    assert [row[0] for row in table.rows] == [f"step_{place}" for place in range(1, 2001)]
    assert table.rows[1][1:] == (250.0, 0.25, 1000.0, 1, 1, "a.py:2")
    assert any("Only the 2,000 functions" in note for note in document.notes) == (count > 2000)
    assert document.facts == ("cProfile", f"{count:,} functions", f"{count:,} calls")
    assert [section.title for section in document.sections if section is not table] == ["Flame graph, approximate"]


def test_samples_with_times_are_counted_and_samples_without_are_the_measure(tmp_path: Path) -> None:
    one = {"type": "sampled", "name": "a", "unit": "seconds", "samples": [[0, 1], [0]], "weights": [0.25, 0.5]}
    timed = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": [one]})))._document()
    assert timed.facts == ("speedscope", "3 functions", "2 samples")
    assert [(each.label, each.value, each.unit) for each in timed.figures] == [("time", 750.0, "ms")]
    counted = perfnb.load(written(tmp_path, "main;f 1\n"))._document()
    assert counted.facts == ("collapsed stacks", "2 functions")
    assert [(each.label, each.value, each.unit) for each in counted.figures] == [("samples", 1, "count")]


def test_compared_by_function(tmp_path: Path) -> None:
    a = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE)))
    slower = json.loads(json.dumps(SPEEDSCOPE).replace('"at": 8', '"at": 9').replace("relu", "gelu"))
    comparison = a.compare(perfnb.load(written(tmp_path, json.dumps(slower))))
    assert isinstance(comparison, perfnb.results.HostComparison)
    assert figures(comparison, "grew_ms") == {"relu": (-4.0,), "gelu": (4.0,), "step": (1.0,), "main": (-1.0,)}
    document = comparison._document()
    assert document.verdict.sentence == "gelu changed most: 0 ms → 4.00 ms of its own"
    assert document.facts == ("2 functions take more, 2 less",)
    assert [(each.label, each.value, each.unit) for each in document.figures] == [
        *[("baseline", 10, "ms"), ("candidate", 10, "ms"), ("candidate against baseline", 1, "ratio")]
    ]
    (table,) = (section for section in document.sections if isinstance(section, Table))
    assert table.rows == [
        ("gelu", "none", 4, 4, "", ""),
        ("relu", 4, "none", -4, "", ""),
        ("main", 4, 3, -1, 0.75, "train.py"),
        ("step", 2, 3, 1, 1.5, ""),
    ]
    assert comparison.to_html(tmp_path / "a.html").read_text().count('"before":[') == 1
    with pytest.raises(TypeError, match="host profile"):
        a.compare(3)  # type: ignore[arg-type]


def test_profiles_in_other_units_are_compared_by_share(tmp_path: Path) -> None:
    a, b = (
        perfnb.load(written(tmp_path, text, "p"))
        for text in ("main;step 40\nmain;load 30\nmain;idle 30\n", json.dumps(SPEEDSCOPE))
    )
    document = a.compare(b)._document()
    assert document.verdict.sentence == "main (train.py) changed most: 0 % → 40 % of the whole"
    assert any("only shares of the whole" in note for note in document.notes)
    assert not any(isinstance(section, Picture) for section in document.sections)
    assert a.compare(a)._document().verdict.sentence == "No function has changed"


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ("main;step 60\nmain;load 40\n", "main;step 20\nmain;wait 80\n", "Only 60 % of the baseline and 20 % of"),
        ("m;step 20\nm;load 80\n", "m;step 60\nm;wait 40\n", "Only 20 % of the baseline and 60 % of"),
        ("m;step 50\nm;load 50\n", "m;step 60\nm;wait 40\n", ""),
        ("m;step 49\nm;load 51\n", "m;step 60\nm;wait 40\n", "Only 49 % of the baseline and 60 % of"),
    ],
)
def test_profiles_with_little_in_common_are_reported(tmp_path: Path, one: str, other: str, says: str) -> None:
    a, b = (perfnb.load(written(tmp_path, text)) for text in (one, other))
    notes = a.compare(b)._document().notes
    assert notes[0].startswith(says or "The two profiles were not recorded in turn")
    assert len(notes) == (3 if says else 2)


def test_counts_are_compared_as_shares_of_the_candidates_total(tmp_path: Path) -> None:
    a, b = (perfnb.load(written(tmp_path, text)) for text in ("f 30\ng;f 10\ng;h 10\n", "f 40\ng;h 60\n"))
    diff = a.compare(b)._diff
    assert diff.tree is not None
    assert diff.before is not None
    calls = [diff.tree.text(node) for node in range(len(diff.tree))]
    assert dict(zip(calls, zip(diff.before, diff.tree.self, strict=True), strict=True)) == {
        **{"f": (60, 40), "g": (0, 0), "g;f": (20, 0), "g;h": (20, 60)},
    }
    assert diff.functions["function"].tolist() == ["f", "h", "g"]
    assert diff.functions["grew_share"].tolist() == pytest.approx([-0.4, 0.4, 0])
    assert diff.functions["grew_ms"].isna().all()
    assert diff.functions["file"].isna().all()
    assert diff.notes[-1].startswith("Shares of the whole are compared.")


def test_a_profile_of_nothing_is_not_a_reason_to_scale_the_other() -> None:
    some, nothing = (HostRecord("a", "x", "samples", tree_of((-1, "f", value))) for value in (3.0, 0.0))
    for a, b, before in ((some, nothing, 3.0), (nothing, some, 0.0)):
        diff = diff_records(a, b)
        assert diff.before is not None
        assert diff.before.tolist() == [before]
        assert not any("scaled" in note for note in diff.notes)


@pytest.mark.parametrize("exact", [(False, False), (True, False), (False, True), (True, True)])
def test_a_comparison_with_cprofile_has_an_approximate_flame_graph(tmp_path: Path, exact: tuple[bool, bool]) -> None:
    calls = marshal.dumps({("train.py", 1, "main"): (1, 1, 0.02, 0.02, {})})
    a, b = (perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE) if each else calls)) for each in exact)
    diff = a.compare(b)._diff
    assert any("approximate" in note for note in diff.notes) == (exact != (True, True))
    assert diff.before is not None
    assert diff.before.sum() == pytest.approx(10 if exact[0] else 20)  # times are not scaled
    assert diff.unit == "ms"


@pytest.mark.parametrize(
    ("function", "package"),
    [
        (Function("f", "/a/train.py", kind="own"), "your code"),
        (Function("net.fc", "", kind="layer"), "others"),
        (Function("f", "/v/site-packages/torch/nn/a.py"), "torch"),
        (Function("f", "/v/dist-packages/six.py"), "six"),
        (Function("f", r"C:\v\site-packages\numpy\core.py"), "numpy"),
        (Function("f", "/usr/lib/python3.12/json/decoder.py"), "Python"),
        (Function("f", "lib/python3/os.py"), "Python"),
        (Function("f", "<frozen importlib>"), "Python"),
        (Function("<built-in print>"), "Python"),
        (Function("{method 'sort'}"), "Python"),
        (Function("<lambda>", "/srv/me/x.py"), "me"),
        (Function("f", "[kernel.kallsyms]"), "kernel.kallsyms"),
        (Function("f", "[]"), "others"),
        (Function("f", "/lib/libc-2.19.so"), "libc-2.19.so"),
        (Function("f", "/tmp/perf-339.map"), "JIT"),
        (Function("f", "perf-339.map"), "JIT"),
        (Function("f", "/srv/me/bin/wrk"), "wrk"),
        (Function("f", "/srv/me/train.py"), "me"),
        (Function("f", "/train.py"), "train.py"),
        (Function("f", "C:/me/train.py"), "me"),
        (Function("f", "project/part/train.py"), "project"),
        (Function("f", "train.py"), "train.py"),
        (Function("do_sys_open_[k]"), "kernel"),
        (Function("Loop::run_[j]"), "JIT"),
        (Function("push_[i]"), "inlined"),
        (Function("at::native::add"), "at"),
        (Function("main"), "others"),
    ],
)
def test_the_package_of_a_function(function: Function, package: str) -> None:
    assert package_of(function) == package


def test_calls_of_several_lines_of_a_function_are_distinguished() -> None:
    functions = Function("f", "a.py", 5), Function("f", "a.py", 7), Function("f", "b.py", 9), Function("g", "a.py")
    data = flame_data(tree_of(*((-1, function, 1.0) for function in functions)), "samples", 9)
    assert data["names"] == ["f:5", "f:7", "f", "g"]
    assert data["places"] == ["a.py:5", "a.py:7", "b.py:9", "a.py"]


def tree_of(*calls: tuple[int, str | Function, float]) -> CallTree:
    """Return the tree of calls: the call around each, its function, and its own time."""
    functions = [Function(function) if isinstance(function, str) else function for _, function, _ in calls]
    known = list(dict.fromkeys(functions))
    parents, numbers = ([call[0] for call in calls], [known.index(function) for function in functions])
    own = np.array([call[2] for call in calls])
    return CallTree(tuple(known), np.array(parents), np.array(numbers), own, np.ones(len(calls), dtype=np.int64))


#: Times with inner calls: z 1, a 12, b 8, c 3, d 2, e 2, and nothing.
TIMES = tree_of((-1, "z", 1), (-1, "a", 1), (1, "c", 1), (2, "e", 2), (1, "b", 6), (4, "d", 2), (1, "nothing", 0))


@pytest.mark.parametrize(
    ("most", "kept", "left"),
    [
        (7, {"a": 1, "b": 6, "d": 2, "c": 1, "e": 2, "z": 1}, 0),  # but not what took no time
        (6, {"a": 1, "b": 6, "d": 2, "c": 1, "e": 2, "z": 1}, 0),
        (5, {"a": 1, "b": 6, "d": 2, "c": 1, "e": 2}, 1),  # nothing is around z, so its time is left out too
        (4, {"a": 1, "b": 8, "c": 3}, 3),  # d is as wide as e, so both are left out
        (3, {"a": 1, "b": 8, "c": 3}, 3),
        (2, {"a": 4, "b": 8}, 4),
        (1, {"a": 12}, 5),
    ],
)
def test_the_widest_calls_are_kept_with_the_time_of_those_inside(most: int, kept: dict[str, float], left: int) -> None:
    data = flame_data(TIMES, "ms", most)
    names = [data["names"][number] for number in data["name"]]
    assert list(zip(names, data["self"], strict=True)) == list(kept.items())
    assert data["depth"] == [{"z": 0, "a": 0, "b": 1, "c": 1}.get(name, 2) for name in names]
    assert (data["left"], data["unit"]) == (left, "ms")
    assert not {"before", "seen"} & data.keys()


def test_calls_that_were_wide_before_are_kept_and_have_both_times() -> None:
    before = np.array([0.0, 0, 0, 7, 1, 0, 0.5])
    data = flame_data(TIMES, "ms", 4, before, in_order=True)
    assert [data["names"][number] for number in data["name"]] == ["a", "c", "e", "b"]
    assert (data["self"], data["before"]) == ([1, 1, 2, 8], [0.5, 0, 7, 1])
    assert (data["seen"], data["left"]) == ([1, 2, 3, 4], 3)


def test_phases_are_in_their_usual_order_and_workers_come_last() -> None:
    kinds = {
        "loader worker 0": "worker",
        "odd": "phase",
        "backward": "phase",
        "data": "phase",
        "host_to_device": "phase",
    }
    roots = [(-1, Function(name, kind=kind), 9.0 - at) for at, (name, kind) in enumerate(kinds.items())]
    data = flame_data(tree_of(*roots, (2, Function("train", "/a/train.py", 3, "own"), 1)), "ms", 9)
    names = [data["names"][number] for number in data["name"]]
    assert names == ["data", "host to device", "backward", "train", "odd", "loader worker 0"]
    of_name = dict(zip(data["names"], zip(data["kinds"], data["phases"], strict=True), strict=True))
    assert {name: kind for name, (kind, _) in of_name.items()} == {
        **dict.fromkeys(["data", "host to device", "backward", "odd"], "phase"),
        **{"train": "", "loader worker 0": "worker"},
    }
    words = {name: phase and phase["word"] for name, (_, phase) in of_name.items()}
    assert words == {name: name for name in names} | {"train": None, "loader worker 0": "data"}


def test_the_heaviest_packages_have_colours_of_their_own() -> None:
    light = [(-1, Function("f", f"p{number}/f.py"), 2.0 + number) for number in range(8)]
    tree = tree_of((-1, "main", 99), *light, (0, Function("g", "p0/g.py"), 7.5))  # p0 is the heavier for g
    data = flame_data(tree, "ms", 99)
    assert [group["word"] for group in data["groups"]] == ["p0", "p7", "p6", "p5", "p4", "p3", "p2", "others"]
    assert len({group["colour"] for group in data["groups"]}) == 8
    functions = zip(data["names"], data["places"], strict=True)
    groups = dict(zip(functions, data["group"], strict=True))
    assert groups["g", "p0/g.py"] == groups["f", "p0/f.py"] == 0
    assert groups["f", "p1/f.py"] == groups["main", ""] == 7
    assert groups["f", "p2/f.py"] == 6


def test_a_flame_graph_as_text_has_calls_as_wide_as_their_time() -> None:
    tree = tree_of((-1, "main", 1), (0, "load", 3), (0, "step", 0), (2, "relu", 6), (3, "thin", 0), (-1, "late", 10))
    assert flame_section(tree, "samples", "").text(40) == [
        "▏main".ljust(20) + "▏late".ljust(20),
        "▏step".ljust(12) + "▏load".ljust(6),
        "▏relu".ljust(12),
    ]
    narrow = tree_of((-1, "left out", 3), (-1, "as wide as is drawn", 4), (-1, "rest", 93))
    assert flame_section(narrow, "samples", "").text(100) == ["▏rest".ljust(93) + "▏a…n"]
    deep = tree_of(*((number - 1, f"f{number}", 1.0) for number in range(9)))
    assert [line.strip() for line in flame_section(deep, "ms", "").text(90)] == [f"▏f{number}" for number in range(8)]
    assert flame_section(tree_of(), "ms", "").text(40) == []


def test_a_static_flame_graph_draws_calls_of_a_thousandth_in_their_colours() -> None:
    phases = Function("forward", kind="phase"), Function("backward", kind="phase")
    calls = (-1, phases[0], 0), (0, "f", 499), (0, "narrow", 0.9), (0, "least", 1.1), (-1, phases[1], 499)
    static = flame_section(tree_of(*calls), "ms", "").html
    assert static is not None
    # Of 880 pixels, forward has 0.501 and leaves a gap of 0.6; least is narrower than the gap.
    forward, backward = (palette.mark(phase.name).colour for phase in phases)
    assert boxes(static()) == {
        forward: [(0, 0, 440.3), (0, 15, 438.5), (439.1, 15, 0.4)],
        backward: [(440.9, 0, 438.5)],
    }
    assert "Flame graph of 5 calls, 1.00 s;" in spaced(static())
    assert flame_section(tree_of((-1, "f", 0)), "ms", "").html() == ""  # type: ignore[misc]
    compared = flame_section(tree_of((-1, "f", 1)), "ms", "", np.ones(1)).html
    assert compared is not None
    assert compared() == ""


@pytest.mark.parametrize(("depth", "says"), [(2, ""), (_LEVELS, ""), (_LEVELS + 3, "; 3 more levels are not drawn")])
def test_a_static_flame_graph_says_how_many_levels_it_leaves_out(tmp_path: Path, depth: int, says: str) -> None:
    calls = ";".join(f"f{level}" for level in range(depth))
    tree = perfnb.load(written(tmp_path, f"{calls} 3\n"))._record.tree
    static = flame_section(tree, "samples", "").html
    assert static is not None
    assert f"<p>Outermost calls at the top{says}.</p>" in static()


CALLS = (
    (-1, "phase", "forward", "", -1, "", 0),
    (0, "own", "train", "/c/train.py", 5, "out = net(x)", 2),
    (1, "layer", "net", "", -1, "", 1),
    (2, "own", "forward", "/c/net.py", 8, "return relu(x)", 4),
    (3, "other", "relu", "/v/functional.py", 30, "", 8),
    (-1, "phase", "other", "", -1, "", 0),
    (5, "own", "train", "/c/train.py", 5, "out = net(x)", 16),
    (-1, "worker", "loader worker 0", "", -1, "", 0),
    (7, "other", "fetch", "/v/fetch.py", 1, "", 32),
    (8, "own", "item", "/c/data.py", 3, "", 64),
    (9, "own", "item", "/c/data.py", 3, "", 128),
    (0, "other", "outside", "/v/outside.py", 1, "", 256),
)


def stacks_of(
    calls: tuple[tuple[int, str, str, str, int, str, int], ...], loader: dict[str, Any] | None = None, **facts: int
) -> StepStacks | None:
    """Return the stacks of a recording with sampled calls and what is known about them."""
    recording = sampled(ByHand().step(0, 1000).recording(), *calls)
    meta = {**recording.meta, "python": {**recording.meta["python"], **facts}, "parts": {"loader": loader}}
    return step_stacks(replace(recording, meta=meta))


def test_a_line_has_the_time_of_what_it_calls_up_to_the_next_line_of_the_user() -> None:
    stacks = stacks_of(CALLS, steps=2, workers=1)
    assert stacks is not None
    names = ["phase", "process", "file", "line", "code", "self_ms", "total_ms", "share", "samples"]
    found = stacks.lines[names].astype(object)
    assert found.where(found.notna(), None).to_numpy().tolist() == [
        ["data", "loader workers", "/c/data.py", 3, None, 96, 96, 192 / 224, 192],
        ["other", "step", "/c/train.py", 5, "out = net(x)", 8, 8, 16 / 287, 16],
        ["forward", "step", "/c/net.py", 8, "return relu(x)", 6, 6, 12 / 287, 12],
        ["forward", "step", "/c/train.py", 5, "out = net(x)", 1.5, 7.5, 15 / 287, 15],
    ]
    assert stacks.lines["function"].tolist() == ["item", "train", "forward", "train"]
    assert (stacks.steps, stacks.workers, stacks.record.samples) == (2, 1, 511)

    document = stacks_document(stacks)
    assert document.verdict.sentence == "The slowest line of your code, 96.0 ms in data (workers): data.py:3"
    assert document.facts == ("511 samples of 2 steps and 1 loader worker; times per step",)
    lines = next(section for section in document.sections if isinstance(section, Table))
    assert [(row[0], row[1].word, *row[2:]) for row in lines.rows[:2]] == [
        ("data.py:3", "data (workers)", "", 96, 96, 192 / 224),
        ("train.py:5", "other", "out = net(x)", 8, 8, 16 / 287),
    ]


def test_a_step_without_code_of_the_user_or_without_time_has_no_shares() -> None:
    none = stacks_of((CALLS[0], (0, "other", "outside", "/v/outside.py", 1, "", 256)))
    assert none is not None
    assert none.lines.empty
    assert stacks_document(none).verdict.sentence == ""
    still = stacks_of((*CALLS[5:6], (0, *CALLS[6][1:-1], 0), (-1, *CALLS[7][1:]), (2, *CALLS[9][1:])))
    assert still is not None
    assert still.lines["share"].isna().tolist() == [False, True]
    assert stacks_of(()) is None


@pytest.mark.parametrize(
    ("facts", "loader", "notes"),
    [
        ({}, None, ["Only the thread that runs the step"]),
        ({}, {"num_workers": 0}, ["Only the thread that runs the step"]),
        ({"workers": 2, "steps": 4}, {"num_workers": 2}, ["Loader workers run"]),
        ({"workers": 2, "steps": 5}, {"num_workers": 2, "prefetch_factor": 2}, ["Loader workers run"]),
        (
            {"workers": 2, "steps": 4},
            {"num_workers": 2, "prefetch_factor": 2},
            ["Loader workers run", "The loader keeps up to 4 batches ready. The 4 steps"],
        ),
        (
            {"unreached_workers": 1, "steps": 1},
            {"num_workers": 1, "prefetch_factor": 2},
            ["Only the thread that runs the step", "n/a: the Python code of 1 loader worker that started"],
        ),
        (
            {"steps": 1},
            {"num_workers": 2, "prefetch_factor": 2},
            ["Only the thread that runs the step", "n/a: the Python code of the loader's workers"],
        ),
    ],
)
def test_parts_that_the_samples_leave_out_are_noted(
    facts: dict[str, int], loader: dict[str, Any] | None, notes: list[str]
) -> None:
    stacks = stacks_of(CALLS, loader, **facts)
    assert stacks is not None
    found = stacks.record.notes[1:]
    assert [note[: len(start)] for note, start in zip(found, notes, strict=True)] == notes


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    measured = {"cProfile", "host profiles of one unit compared"}
    golden("samples.txt", texts({name: made for name, made in DOCUMENTS.items() if name not in measured}))
