"""The display of host profiles: what took most, what changed most, and by package."""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable
from pathlib import Path

import pytest

import perfnb
from perfnb.draw.document import Picture, Table
from perfnb.flame.data import flame_data, package_of
from perfnb.flame.picture import _LEVELS, flame_section
from perfnb.stacks.tree import Function
from tests.samples import texts
from tests.samples.flame import DOCUMENTS
from tests.stacks.test_host_profiles import COLLAPSED, SPEEDSCOPE, figures, written


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (COLLAPSED, "relu takes 64 % of the samples itself, 7 of 11"),
        (json.dumps(SPEEDSCOPE), "main (train.py:1) takes 40 % of the time itself, 4.00 ms of 10.0 ms"),
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


def test_every_function_is_a_row(tmp_path: Path) -> None:
    found = {("a.py", place, f"step_{place}"): (1, 1, 1.0 / place, 1.0, {}) for place in range(1, 2102)}
    document = perfnb.load(written(tmp_path, marshal.dumps(found), "a.prof"))._document()
    (table,) = (section for section in document.sections if isinstance(section, Table))
    assert [row[0] for row in table.rows] == [f"step_{place}" for place in range(1, 2001)]
    assert table.rows[1][1:] == (
        500.0,
        pytest.approx(0.5 / 8.2276, rel=1e-4),
        1000.0,
        pytest.approx(1 / 8.2276, rel=1e-4),
        1,
        "a.py:2",
    )
    assert any("Only the 2,000 functions" in note for note in document.notes)


def test_compared_by_function(tmp_path: Path) -> None:
    a = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE)))
    slower = json.loads(json.dumps(SPEEDSCOPE).replace('"at": 8', '"at": 9').replace("relu", "gelu"))
    comparison = a.compare(perfnb.load(written(tmp_path, json.dumps(slower))))
    assert isinstance(comparison, perfnb.results.HostComparison)
    assert figures(comparison, "grew_ms") == {"relu": (-4.0,), "gelu": (4.0,), "step": (1.0,), "main": (-1.0,)}
    document = comparison._document()
    assert document.verdict.sentence == "gelu changed most: 0 ms → 4.00 ms of its own"
    assert document.facts == ("2 functions take more, 2 less",)
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


def test_profiles_with_little_in_common_are_told(tmp_path: Path) -> None:
    one = perfnb.load(written(tmp_path, "main;step 60\nmain;load 40\n", "a"))
    other = perfnb.load(written(tmp_path, "main;step 20\nmain;wait 80\n", "b"))
    assert "Only 60 % of the baseline and 20 % of the candidate" in str(one.compare(other))
    assert "in functions that both have" not in str(one.compare(one))


def test_programs_and_compiled_code_are_packages_of_their_own() -> None:
    files = {"/tmp/perf-339.map": "JIT", "/srv/me/bin/wrk": "wrk", "/lib/libc-2.19.so": "libc-2.19.so"}
    files |= {"/srv/me/train.py": "me", "[kernel.kallsyms]": "kernel.kallsyms"}
    assert {file: package_of(Function("f", file)) for file in files} == files


def test_calls_of_several_lines_of_a_function_are_told_apart(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, "main (a.py:1);f (a.py:5) 3\nmain (a.py:1);f (a.py:7) 4\ng;f 2\n"))
    tree = profile._record.tree
    assert sorted(flame_data(tree, "samples", 9)["names"]) == ["f", "f:5", "f:7", "g", "main"]


def test_a_flame_graph_as_text_has_calls_as_wide_as_their_time(tmp_path: Path) -> None:
    tree = perfnb.load(written(tmp_path, "main;load 3\nmain;step;relu 6\nmain 1\n"))._record.tree
    assert flame_section(tree, "samples", "").text(40) == [
        "▏main".ljust(40),
        "▏step".ljust(24) + "▏load".ljust(12),
        "▏relu".ljust(24),
    ]


@pytest.mark.parametrize(("depth", "says"), [(2, ""), (_LEVELS, ""), (_LEVELS + 3, "; 3 more levels are not drawn")])
def test_a_static_flame_graph_says_how_many_levels_it_leaves_out(tmp_path: Path, depth: int, says: str) -> None:
    calls = ";".join(f"f{level}" for level in range(depth))
    tree = perfnb.load(written(tmp_path, f"{calls} 3\n"))._record.tree
    static = flame_section(tree, "samples", "").html
    assert static is not None
    assert f"<p>Outermost calls at the top{says}.</p>" in static()


def test_the_samples_as_text(golden: Callable[[str, str], None]) -> None:
    measured = {"cProfile", "host profiles of one unit compared"}
    golden("samples.txt", texts({name: made for name, made in DOCUMENTS.items() if name not in measured}))
