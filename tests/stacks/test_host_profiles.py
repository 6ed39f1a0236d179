"""Host profiles of other tools: read, refused, shown, saved and compared."""

from __future__ import annotations

import cProfile
import io
import json
import marshal
import os
import pstats
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfnb
from perfnb.errors import RecordingError, TraceError
from perfnb.stacks import collapsed, tables
from perfnb.stacks.cprofile import recognised
from perfnb.stacks.formats import format_of, formats, read_record
from perfnb.trace.trace_file import Limits
from tests.damage import mutated

TRACES = Path(os.environ.get("PERFNB_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
FOREIGN = TRACES.parent / "foreign"
public = pytest.mark.skipif(not FOREIGN.is_dir(), reason=f"no folder of other tools' files at {FOREIGN}")

COLLAPSED = "main;load (data.py:3) 3\nmain;step;relu 5\nmain;step;step;relu 2\nmain 1\n# a comment\nbroken\n"
SPEEDSCOPE: dict[str, Any] = {
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [{"name": "main", "file": "train.py", "line": 1}, {"name": "step"}, {"name": "relu"}]},
    "profiles": [
        {
            **{"type": "evented", "name": "t", "unit": "milliseconds", "startValue": 0, "endValue": 10},
            "events": [
                {"type": kind, "frame": frame, "at": at}
                for kind, frame, at in [("O", 0, 0), ("O", 1, 2), ("O", 2, 3), ("C", 2, 7), ("C", 1, 8), ("C", 0, 10)]
            ],
        }
    ],
}
PERF = (
    "# captured on: a day\n"
    "my program  10 198792.736893:    1001001 cpu-clock: \n"
    "\t             643 inner+0x12 (/bin/prog)\n\t             695 main (/bin/prog)\n\n"
    "my program  10/11 [000] 198792.737607: cpu-clock: \n\t             695 main (/bin/prog)\n\n"
)


def written(folder: Path, content: str | bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def statistics() -> bytes:
    """Return what cProfile writes, by its own module."""
    profile = cProfile.Profile()
    profile.runcall(sorted, [3, 1, 2], key=lambda value: -value)
    profile.create_stats()
    return marshal.dumps(profile.stats)  # type: ignore[attr-defined]


def figures(profile: Any, *columns: str) -> dict[str, tuple[Any, ...]]:
    table = profile.functions
    return {row.function: tuple(getattr(row, column) for column in columns) for row in table.itertuples()}


def test_collapsed_stacks_count_recursion_once_and_say_what_was_skipped(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, COLLAPSED))
    assert isinstance(profile, perfnb.results.HostProfile)
    assert profile.samples == 11
    # By hand: step is on the stack in 5 + 2 samples, though twice in two of them.
    assert figures(profile, "self_samples", "total_samples") == {
        **{"main": (1, 11), "step": (0, 7), "relu": (7, 7), "load": (3, 3)},
    }
    stacks = profile.stacks
    assert list(stacks["stack"]) == ["main;step;relu", "main;load", "main;step;step;relu", "main"]
    assert list(stacks["samples"]) == [5, 3, 2, 1]
    loaded = profile.functions.set_index("function").loc["load"]
    assert (loaded["file"], loaded["line"]) == ("data.py", 3)
    assert profile.functions["self_ms"].isna().all()
    assert any("1 line " in note for note in profile.meta["notes"])


def test_collapsed_stacks_in_utf_16(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, COLLAPSED.encode("utf-16")))
    assert profile.samples == 11


def test_the_stacks_of_torch_are_in_microseconds(tmp_path: Path) -> None:
    text = (
        "train.py(3):_step;nn/linear.py(1):_forward;<built-in_function_linear> 2000\ntrain.py(3):_step;a.py(9):_b 500\n"
    )
    profile = perfnb.load(written(tmp_path, text))
    assert profile.samples is None
    assert figures(profile, "self_ms", "total_ms", "line")["step"] == (0.0, 2.5, 3)
    assert perfnb.load(written(tmp_path, "train.py(3):_step;half 5\n")).samples == 5  # as many as others are not enough


def test_addresses_are_no_part_of_names(tmp_path: Path) -> None:
    text = "train.py(3):_step;<built-in_method_{}_of_type_object_at_0x7f{}> 2000\n"
    first = perfnb.load(written(tmp_path, text.format("tensor", "1a2b3c"), "a"))
    second = perfnb.load(written(tmp_path, text.format("tensor", "99ff00") + text.format("randn", "99ff00"), "b"))
    assert figures(first, "self_ms")["<built-in_method_tensor_of_type_object>"] == (2.0,)
    assert figures(first.compare(second), "grew_ms")["<built-in_method_tensor_of_type_object>"] == (0.0,)
    built_in = {("~", 0, "<built-in method __new__ of type object at 0x955e60>"): (1, 1, 1.0, 1.0, {})}
    of_python = perfnb.load(written(tmp_path, marshal.dumps(built_in), "c"))
    assert list(of_python.functions["function"]) == ["<built-in method __new__ of type object>"]


def test_evented_speedscope_profile(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE)))
    assert profile.samples is None
    assert figures(profile, "self_ms", "total_ms") == {"main": (4.0, 10.0), "step": (2.0, 6.0), "relu": (4.0, 4.0)}


def test_a_line_that_cannot_be_is_unknown(tmp_path: Path) -> None:
    lines = {None: None, -1: None, 0: 0, 7: 7, 2**31 - 1: 2**31 - 1, 2**31: None}
    frames = [{"name": f"f{line}", "file": "a.py", **({} if line is None else {"line": line})} for line in lines]
    sampled = {"type": "sampled", "name": "a", "unit": "seconds", "samples": [[*range(6)]], "weights": [1]}
    file = SPEEDSCOPE | {"shared": {"frames": frames}, "profiles": [sampled]}
    profile: Any = perfnb.load(written(tmp_path, json.dumps(file)))
    table = profile.functions.set_index("function")["line"]
    assert {name: None if pd.isna(line) else line for name, line in table.items()} == {
        f"f{line}": known for line, known in lines.items()
    }


def test_sampled_speedscope_profiles_of_two_threads(tmp_path: Path) -> None:
    one = {"type": "sampled", "unit": "seconds", "samples": [[0, 1], [0]], "weights": [0.25, 0.5]}
    file = SPEEDSCOPE | {"profiles": [one | {"name": "a"}, one | {"name": "b"}]}
    profile = perfnb.load(written(tmp_path, json.dumps(file)))
    assert profile.samples == 4
    assert figures(profile, "self_ms", "total_ms", "total_samples")["main"] == (1000.0, 1500.0, 4)
    assert figures(profile, "total_ms")["a"] == (750.0,)


def test_values_without_a_unit_stay_as_they_were_written(tmp_path: Path) -> None:
    sampled = {"type": "sampled", "name": "a", "unit": "none", "samples": [[0, 1], [0], []], "weights": [3, 5, 9]}
    profile = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": [sampled]})))
    functions = profile.functions.set_index("function")
    assert functions["total_share"].to_dict() == {"main": 1.0, "step": 0.375, "relu": 0.0}
    assert functions["self_ms"].isna().all()
    in_bytes = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": [sampled | {"unit": "bytes"}]})))
    assert figures(in_bytes, "self_bytes", "total_bytes") == {"main": (5, 8), "step": (3, 3), "relu": (0, 0)}
    evented = SPEEDSCOPE["profiles"][0] | {"unit": "none"}
    profile = perfnb.load(
        written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": [evented, sampled | {"unit": "bytes"}]}))
    )
    notes = " ".join(profile.meta["notes"])
    assert "1 of the 2 profiles are in another unit and were left out." in notes
    assert "The file does not specify the unit of its values. Times are n/a, and only shares are known." in notes


def test_samples_without_a_stack_are_omitted_and_reported(tmp_path: Path) -> None:
    one = {"type": "sampled", "unit": "seconds", "samples": [[0, 1], [], [0], []], "weights": [0.25, 3, 0.5, 1]}
    for threads, total in (([one | {"name": "a"}], 750.0), ([one | {"name": "a"}, one | {"name": "b"}], 1500.0)):
        profile = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": threads})))
        assert profile.samples == 2 * len(threads)
        assert profile.functions["self_ms"].sum() == total
        assert profile.stacks["share"].sum() == pytest.approx(1)
        told = f"Left out {2 * len(threads)} samples ({4 * len(threads)}.00 s) without a stack"
        assert any(note.startswith(told) for note in profile.meta["notes"])
    raw = perfnb.load(written(tmp_path, "main;step 60\nmain;load 10\n 360\n"))
    assert raw.samples == 70
    assert any(note.startswith("Left out 360 counts without a stack") for note in raw.meta["notes"])
    assert not any("Skipped" in note for note in raw.meta["notes"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda profile: profile["events"].pop(), "does not end"),
        (lambda profile: profile["events"][0].update(frame=3), "frame that does not exist"),
        (lambda profile: profile["events"][0].update(frame=-1), "frame that does not exist"),
        (lambda profile: profile["events"][3].update(frame=1), "not the innermost"),
        (lambda profile: profile["events"][2].update(at=1), "chronological order"),
        (lambda profile: profile.update(type="sampled", samples=[[0]], weights=[]), "different number of weights"),
        (lambda profile: profile.update(type="sampled", samples=[[0]], weights=[-1]), "weight"),
        (lambda profile: profile.update(type="other"), "neither"),
        (lambda profile: profile.update(unit="days"), "unit"),
        (
            lambda each: each.update(evented(("O", 0, -1e308), ("C", 0, 1), startValue=-1e308), unit="seconds"),
            "implausibly large",
        ),
    ],
)
def test_wrong_speedscope_profiles_are_refused(tmp_path: Path, change: Any, why: str) -> None:
    file = json.loads(json.dumps(SPEEDSCOPE))
    change(file["profiles"][0])
    with pytest.raises(TraceError, match=why):
        perfnb.load(written(tmp_path, json.dumps(file)))


def test_statistics_of_cprofile_are_those_of_pstats(tmp_path: Path) -> None:
    data = statistics()
    profile = perfnb.load(written(tmp_path, data, "a.prof"))
    expected = pstats.Stats(str(tmp_path / "a.prof"), stream=io.StringIO())
    table = profile.functions
    assert len(table) == len(expected.stats)  # type: ignore[attr-defined]
    assert table["calls"].sum() == expected.total_calls  # type: ignore[attr-defined]
    assert table["self_ms"].sum() == pytest.approx(1e3 * expected.total_tt)  # type: ignore[attr-defined]
    assert profile.samples is None
    assert profile.stacks.empty


def test_statistics_of_a_sampling_profiler_have_no_numbers_of_calls(tmp_path: Path) -> None:
    # As pyinstrument writes them.
    found = {("train.py", 3, "step"): (-1, -1, 0.25, 1.0, {}), ("<built-in>", 0, "sin"): (-1, -1, 0.75, 0.75, {})}
    profile = perfnb.load(written(tmp_path, marshal.dumps(found), "a.prof"))
    assert figures(profile, "self_ms", "total_ms") == {"step": (250.0, 1000.0), "sin": (750.0, 750.0)}
    assert profile.functions["calls"].isna().all()
    assert profile.functions.set_index("function").loc["sin", ["file", "line"]].isna().all()
    assert "-1" not in str(profile)
    assert "Calls are n/a" in str(profile)
    again = perfnb.load(profile.save(tmp_path / "saved"))
    assert again.functions.equals(profile.functions)
    wrong = {("train.py", 3, "step"): (-2, -1, 0.25, 1.0, {})}
    with pytest.raises(TraceError, match="number of calls"):
        perfnb.load(written(tmp_path, marshal.dumps(wrong), "b.prof"))


def called_by(times: dict[str, tuple[float, float]], edges: dict[tuple[str, str], float]) -> bytes:
    """Return statistics of functions by own and total seconds, and of the calls between two."""
    return marshal.dumps(
        {
            ("a.py", 1, name): (
                *(1, 1, own, total),
                {
                    ("a.py", 1, caller): (1, 1, 0.0, value)
                    for (caller, callee), value in edges.items()
                    if callee == name
                },
            )
            for name, (own, total) in times.items()
        }
    )


def stacks_of(profile: Any) -> dict[str, float]:
    tree = profile._record.tree
    return {tree.text(place): round(value, 6) for place, value in enumerate(tree.self.tolist()) if value > 0}


def test_time_of_a_function_is_divided_among_its_callers(tmp_path: Path) -> None:
    # By hand: of the 6 s in leaf, 4 s are in calls from a, 2 s in those from b; a third of them in leaf's own callee.
    times = {"main": (1.0, 10.0), "a": (1.0, 5.0), "b": (2.0, 4.0), "leaf": (4.0, 6.0), "inner": (2.0, 2.0)}
    edges = {("main", "a"): 5.0, ("main", "b"): 4.0, ("a", "leaf"): 4.0, ("b", "leaf"): 2.0, ("leaf", "inner"): 2.0}
    profile = perfnb.load(written(tmp_path, called_by(times, edges), "a.prof"))
    assert stacks_of(profile) == pytest.approx(
        {
            **{"main": 1000, "main;a": 1000, "main;b": 2000},
            **{"main;a;leaf": 4000 * 4 / 6, "main;b;leaf": 2000 * 4 / 6},
            **{"main;a;leaf;inner": 4000 / 3, "main;b;leaf;inner": 2000 / 3},
        }
    )
    assert profile.stacks.empty  # they are approximate
    assert "Flame graph, approximate" in str(profile)
    assert stacks_of(perfnb.load(profile.save(tmp_path / "saved"))) == stacks_of(profile)


@pytest.mark.parametrize("outside", [True, False])
def test_calls_in_a_circle_end(tmp_path: Path, outside: bool) -> None:
    times = {"a": (1.0, 4.0), "b": (3.0, 4.0)} | ({"main": (0.0, 4.0)} if outside else {})
    edges = {("a", "b"): 4.0, ("b", "a"): 4.0, ("a", "a"): 1.0} | ({("main", "a"): 4.0} if outside else {})
    profile = perfnb.load(written(tmp_path, called_by(times, edges), "a.prof"))
    stacks = stacks_of(profile)
    assert set(stacks) == {"main;a", "main;a;b"} if outside else {"a", "a;b"}
    assert sum(stacks.values()) == pytest.approx(4000)


def test_a_graph_with_endless_stacks_gives_a_small_tree(tmp_path: Path) -> None:
    names = [f"f{place}" for place in range(60)]
    edges = {(caller, callee): 1.0 for caller in names for callee in names if caller < callee}
    profile = perfnb.load(written(tmp_path, called_by(dict.fromkeys(names, (1.0, 60.0)), edges), "a.prof"))
    tree = profile._record.tree
    assert len(tree) <= 5000
    assert tree.self.sum() == pytest.approx(60_000)


@pytest.mark.parametrize(
    "callers", [{("x", 1, "y"): (1, 1, 1.0, 1.0)}, {("a.py", 1, "f"): (1, 1, 1.0, -1.0)}, {("a.py", 1, "f"): 3}]
)
def test_callers_that_say_nothing_are_left_out(tmp_path: Path, callers: Any) -> None:
    found = {("a.py", 1, "f"): (1, 1, 1.0, 2.0, {}), ("a.py", 2, "g"): (1, 1, 1.0, 1.0, callers)}
    assert set(stacks_of(perfnb.load(written(tmp_path, marshal.dumps(found))))) == {"f", "g"}


class _Code:
    """Marshal of a few hostile values, written by hand."""

    key = b"\x29\x03\xda\x01f\x69\x01\0\0\0\xda\x01g"
    value = b"\x29\x05" + 2 * b"\x69\x01\0\0\0" + 2 * (b"g" + bytes(8)) + b"{0"


HOSTILE = {
    "code object": (marshal.dumps({("f", 1, "g"): compile("1", "f", "eval")}), "code object"),
    "code as key": (b"{\x29\x03" + marshal.dumps(compile("1", "f", "eval")), "code object"),
    "endless reference": (b"\xfb" + _Code.key[:2] + b"r\0\0\0\0", "does not exist"),
    "reference to itself": (b"\xfb" + _Code.key + b"\xa9\x01r\x03\0\0\0", "does not exist"),
    "missing reference": (b"{" + _Code.key + b"r\xff\xff\xff\xff", "does not exist"),
    "reference to a container": (b"{" + _Code.key + b"\x29\x02\xa9\x01\x29\x00r\x02\0\0\0", "inside another"),
    "huge text": (b"{\x29\x03u\xff\xff\xff\x7f", "too early"),
    "huge tuple": (b"{\x28\x03\0\0\0\x28\xff\xff\xff\x7f", "too early"),
    "huge number": (b"{\x29\x03l\xff\xff\xff\x7f", "too large"),
    "deep": (b"{" + _Code.key + b"\x29\x01" * 5000, "more deeply"),
    "list as key": (b"{\x29\x03\x29\x01\x29\x00NN", "not a function"),
    "set": (b"{" + _Code.key + b"<\x01\0\0\0N", "type"),
    "figures of another form": (marshal.dumps({("f", 1, "g"): (1, 1, 1.0, {})}), "not in cProfile's format"),
    "no callers": (marshal.dumps({("f", 1, "g"): (1, 1, 1.0, 1.0, 1.0)}), "not in cProfile's format"),
    "key of two": (b"{" + _Code.key + _Code.value + b"\x29\x02" + _Code.key[2:10] + _Code.value + b"0", "a key is not"),
    "line that is a flag": (marshal.dumps({("f", True, "g"): (1, 1, 1.0, 1.0, {})}), "a value of type 'T'"),
    "line that is a fraction": (marshal.dumps({("f", 1.0, "g"): (1, 1, 1.0, 1.0, {})}), "a key is not a function"),
    "negative calls": (marshal.dumps({("f", 1, "g"): (-(2**40), 1, 1.0, 1.0, {})}), "number of calls"),
    "fewer calls than primitive ones": (marshal.dumps({("f", 1, "g"): (2, 1, 1.0, 1.0, {})}), "number of calls"),
    "too many calls": (marshal.dumps({("f", 1, "g"): (1, 2**62, 1.0, 1.0, {})}), "number of calls"),
    "endless time": (marshal.dumps({("f", 1, "g"): (1, 1, 1.0, float("inf"), {})}), "a time is out of range"),
    "negative time": (marshal.dumps({("f", 1, "g"): (1, 1, -1e12, 1.0, {})}), "a time is out of range"),
    "something behind": (b"{" + _Code.key + _Code.value + b"0N", "follows"),
    "cut": (b"{" + _Code.key + _Code.value, "too early"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_marshal_is_refused(tmp_path: Path, name: str) -> None:
    data, why = HOSTILE[name]
    with pytest.raises(TraceError, match=why):
        perfnb.load(written(tmp_path, data))


def test_the_byte_of_a_damage_is_reported(tmp_path: Path) -> None:
    data = statistics()[:-1] + b"N0"
    with pytest.raises(TraceError, match=rf"a key is not a function \(byte {len(data) - 1:,}\)"):
        perfnb.load(written(tmp_path, data))


def test_stacks_whose_text_would_fill_the_memory_are_an_error_and_the_rest_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = ";".join(f"{'f' * 90}{place}" for place in range(100))
    profile = perfnb.load(written(tmp_path, "".join(f"{deep};g{place} 1\n" for place in range(100))))
    assert profile.stacks["stack"].str.len().sum() == 100 * len(deep) + 100 + 290
    monkeypatch.setattr(tables, "MOST_LETTERS", 900_000)
    with pytest.raises(TraceError, match=r"has 100 stacks with more than 900,000 characters in total. Use its"):
        profile.stacks  # noqa: B018
    assert len(profile.functions) == 200
    assert profile.to_html(tmp_path / "a.html").is_file()


def test_names_may_be_referred_to_again(tmp_path: Path) -> None:
    twice = b"{" + _Code.key + _Code.value + b"\x29\x03r\0\0\0\0\x69\x02\0\0\0r\x01\0\0\0" + _Code.value + b"0"
    profile = perfnb.load(written(tmp_path, twice))
    assert list(profile.functions["function"]) == ["g", "g"]
    assert list(profile.functions["line"]) == [1, 2]


def test_large_numbers_and_names_as_python_2_wrote_them(tmp_path: Path) -> None:
    counts = {("f", 2**31, "g"): (2**31 - 1, 2**62 - 1, 1, 2.0, {}), ("f", 2**31 - 1, "h"): (0, 2**40, 0, 0.5, {})}
    table = perfnb.load(written(tmp_path, marshal.dumps(counts))).functions.set_index("function")
    assert table["calls"].to_dict() == {"g": 2**62 - 1, "h": 2**40}
    assert table["line"].isna().to_dict() == {"g": True, "h": False}
    assert table["total_ms"].to_dict() == {"g": 2000.0, "h": 500.0}

    names = b"\x29\x03t\x01\0\0\0fi\x01\0\0\0t\x01\0\0\0g" + _Code.value
    again = b"\x29\x03R\0\0\0\0i\x02\0\0\0R\x01\0\0\0" + _Code.value
    of_old = perfnb.load(written(tmp_path, b"{" + names + again + b"0")).functions
    assert of_old[["function", "file", "line"]].to_numpy().tolist() == [["g", "f", 1], ["g", "f", 2]]


def test_text_of_perf_script(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, PERF))
    assert profile.samples == 2
    assert figures(profile, "self_samples", "total_samples", "file") == {
        **{"inner": (1, 1, "/bin/prog"), "main": (1, 2, "/bin/prog")},
        "my program": (0, 2, pytest.approx(float("nan"), nan_ok=True)),
    }
    two = perfnb.load(written(tmp_path, PERF + PERF.replace("cpu-clock", "faults") + "bad\n bad\n"))
    assert two.stacks["stack"].tolist() == [
        f"{event};my program;{calls}" for event in ("cpu-clock", "faults") for calls in ("main", "main;inner")
    ]
    assert [note.partition(".")[0] for note in two.meta["notes"][1:]] == [
        *("Several events were sampled", "2 lines could not be read and were skipped")
    ]


def evented(*events: tuple[str, int, float], **changes: Any) -> dict[str, Any]:
    listed = [dict(zip(("type", "frame", "at"), event, strict=True)) for event in events]
    return SPEEDSCOPE["profiles"][0] | changes | {"events": listed}


@pytest.mark.parametrize("kind", ["collapsed", "speedscope", "perf"])
def test_a_stack_deeper_than_any_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("speedscope", "perf_script", "tree"):
        monkeypatch.setattr(f"perfnb.stacks.{module}.DEEPEST", 50)

    def stack(depth: int) -> Path:
        calls = [("O", 0, 0.0)] * depth + [("C", 0, 1.0)] * depth
        header, frame, _ = PERF.splitlines(keepends=True)[1:4]
        return written(
            tmp_path,
            {
                "collapsed": "a;b 1\n" + ";".join("a" * depth) + " 1\n",
                "speedscope": json.dumps(SPEEDSCOPE | {"profiles": [evented(*calls)]}),
                "perf": PERF + header + depth * frame + "\n",
            }[kind],
        )

    deepest = 50 - (kind == "perf")  # below its command
    assert perfnb.load(stack(deepest)) is not None
    with pytest.raises(TraceError, match=r"5\d calls"):
        perfnb.load(stack(51))


def test_evented_profiles_of_several_threads_stand_below_their_names(tmp_path: Path) -> None:
    first = evented(("O", 0, 1), ("O", 1, 2), ("C", 1, 4), ("C", 0, 9), startValue=1)
    second = evented(("O", 1, 5), ("C", 1, 6), ("O", 0, 6), ("C", 0, 7.5), name="", startValue=5)
    profile = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": [first, second]})))
    assert stacks_of(profile) == {"t;main": 6.0, "t;main;step": 2.0, "(no name);step": 1.0, "(no name);main": 1.5}


def test_speedscope_files_without_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="it contains no profiles"):
        perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE | {"profiles": []})))


def test_a_line_that_differs_between_the_calls_of_a_function_is_unknown(tmp_path: Path) -> None:
    text = "main (a.py:1);f (a.py:3) 1\nmain (a.py:1);f (a.py:4) 2\nmain (a.py:1);f (b.py:5) 4\n"
    table = perfnb.load(written(tmp_path, text)).functions
    rows = {(row.function, row.file): (row.line, row.self_samples) for row in table.itertuples()}
    assert rows["main", "a.py"] == (1, 0)
    assert rows["f", "b.py"] == (5, 4)
    assert (table["line"].isna().sum(), rows["f", "a.py"][1]) == (1, 3)


def test_a_saved_tree_that_refers_to_a_missing_row_is_damaged(tmp_path: Path) -> None:
    folder = perfnb.load(written(tmp_path, COLLAPSED)).save(tmp_path / "saved")
    good = pd.read_parquet(folder / "tree.parquet")
    functions = len(pd.read_parquet(folder / "functions.parquet"))
    for column, value in (("parent", 2), ("function", -1), ("function", functions)):
        changed = good.copy()
        changed.loc[2, column] = value
        changed.to_parquet(folder / "tree.parquet")
        with pytest.raises(RecordingError, match="it refers to a missing row"):
            perfnb.load(folder)
    changed = good.copy()
    changed.loc[2, ["parent", "function"]] = [1, functions - 1]
    changed.to_parquet(folder / "tree.parquet")
    assert perfnb.load(folder) is not None


@pytest.mark.parametrize(
    "text", ["", "a,b,c\n1,2,3\n", "0 30 40\n1 20 30\n", "{}", "some words; and 3 numbers\nmore\n"]
)
def test_other_texts_are_not_taken_for_host_profiles(tmp_path: Path, text: str) -> None:
    assert format_of(written(tmp_path, text)) is None


def test_most_lines_of_collapsed_stacks_are_stacks_with_counts() -> None:
    cut = "a;b 1\n" + "x" * (2**15 - 6)  # the last line of a longer file
    for head in ("# a comment\n//another\n\na;b 1\n", "a;b 1\nc 2\nx\n", cut):
        assert collapsed.recognised(head.encode())
    for head in ("a;b 1\nx\n", "a 1\n", cut[:-1]):
        assert not collapsed.recognised(head.encode())


@pytest.mark.parametrize("content", [COLLAPSED, json.dumps(SPEEDSCOPE), statistics(), PERF, marshal.dumps({})])
def test_saved_and_loaded(tmp_path: Path, content: str | bytes) -> None:
    profile = perfnb.load(written(tmp_path, content))
    again = perfnb.load(profile.save(tmp_path / "saved"))
    assert again.functions.equals(profile.functions)
    assert again.stacks.equals(profile.stacks)
    assert again.meta == profile.meta
    assert str(again) == str(profile)


SAMPLES = {
    "collapsed stacks": COLLAPSED.encode(),
    "speedscope profiles": json.dumps(SPEEDSCOPE).encode(),
    "cProfile statistics (.prof)": statistics(),
    "perf script output": PERF.encode(),
}


@pytest.mark.parametrize("times", [40, pytest.param(2000, marks=pytest.mark.deep)])
@pytest.mark.parametrize("what", SAMPLES)
def test_damage_gives_a_profile_or_a_typed_error(tmp_path: Path, what: str, times: int) -> None:
    reader = next(each for each in formats() if each.what == what)
    path, chance = tmp_path / "file", random.Random(what)
    for _ in range(times):
        path.write_bytes(mutated(SAMPLES[what], chance))
        try:
            record = reader.read(path, Limits())
        except TraceError:
            continue
        profile = perfnb.results.HostProfile(record)
        assert len(profile.functions) >= 0
        assert isinstance(str(profile), str)


@public
def test_public_files_have_their_known_figures() -> None:
    stacks = perfnb.load(FOREIGN / "collapsed" / "perf-numa-collapsed-all.txt")
    assert stacks.samples == stacks.stacks["samples"].sum() == 199
    statistics = perfnb.load(FOREIGN / "cprofile" / "tf_step_init.pstats.gz").functions
    assert (len(statistics), statistics["calls"].sum()) == (2722, 179844)
    assert statistics["self_ms"].sum() == pytest.approx(9728.6, abs=0.1)
    cycle = perfnb.load(TRACES / "cprofile" / "cprofile-cycle.pstats").functions
    assert (len(cycle), cycle["calls"].sum()) == (9, 101_204_007)
    assert perfnb.load(FOREIGN / "speedscope" / "two-sampled.speedscope.json").samples == 10
    with pytest.raises(TraceError, match="does not end"):
        perfnb.load(FOREIGN / "speedscope" / "invalid-incomplete.json")


@public
@pytest.mark.parametrize("path", sorted((TRACES / "perf_script").glob("*.txt")), ids=lambda path: path.name)
def test_every_sample_of_perf_script_is_read(path: Path) -> None:
    headers = [line for line in path.read_text().splitlines() if line[:1].strip() and not line.startswith("#")]
    assert read_record(path).samples == len(headers)


@pytest.mark.parametrize("head", [b"{", b"\xfb"])
def test_a_single_byte_is_not_a_cprofile_file(head: bytes) -> None:
    assert not recognised(head)
