"""Host profiles as they are shown: beside each other, by package, and without trusting their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfnb
from perfnb.flame.data import flame_data, package_of
from perfnb.stacks.tree import Function
from tests.stacks.test_host_profiles import SPEEDSCOPE, figures, written


def test_compared_by_function(tmp_path: Path) -> None:
    a = perfnb.load(written(tmp_path, json.dumps(SPEEDSCOPE)))
    slower = json.loads(json.dumps(SPEEDSCOPE).replace('"at": 8', '"at": 9').replace("relu", "gelu"))
    comparison = a.compare(perfnb.load(written(tmp_path, json.dumps(slower))))
    assert isinstance(comparison, perfnb.results.HostComparison)
    assert figures(comparison, "grew_ms") == {"relu": (-4.0,), "gelu": (4.0,), "step": (1.0,), "main": (-1.0,)}
    assert "gelu" in str(comparison)
    assert comparison.to_html(tmp_path / "a.html").read_text().count('"before":[') == 1
    with pytest.raises(TypeError, match="host profile"):
        a.compare(3)  # type: ignore[arg-type]


def test_profiles_with_little_in_common_are_told(tmp_path: Path) -> None:
    one = perfnb.load(written(tmp_path, "main;step 60\nmain;load 40\n", "a"))
    other = perfnb.load(written(tmp_path, "main;step 20\nmain;wait 80\n", "b"))
    assert "Only 60 % of the first and 20 % of the second" in str(one.compare(other))
    assert "in functions that both have" not in str(one.compare(one))


def test_programs_and_compiled_code_are_packages_of_their_own() -> None:
    files = {"/tmp/perf-339.map": "JIT", "/srv/me/bin/wrk": "wrk", "/lib/libc-2.19.so": "libc-2.19.so"}
    files |= {"/srv/me/train.py": "me", "[kernel.kallsyms]": "kernel.kallsyms"}
    assert {file: package_of(Function("f", file)) for file in files} == files


def test_calls_of_several_lines_of_a_function_are_told_apart(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, "main (a.py:1);f (a.py:5) 3\nmain (a.py:1);f (a.py:7) 4\ng;f 2\n"))
    tree = profile._record.tree
    assert sorted(flame_data(tree, "samples", 9)["names"]) == ["f", "f:5", "f:7", "g", "main"]


def test_names_are_escaped(tmp_path: Path) -> None:
    profile = perfnb.load(written(tmp_path, "main;<script>alert(1)</script> 3\n", "<b>name"))
    page = profile.to_html(tmp_path / "a.html").read_text()
    assert "<script>alert" not in page
    assert "<b>name" not in page
