"""Prepare a flame graph for the browser: each call's depth, name and own time, in the order of a tree traversal."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from perfnb import quantities as fmt
from perfnb.draw import escape, palette
from perfnb.recording.nesting import NONE, Floats, Ints
from perfnb.recording.schema import PHASES
from perfnb.stacks.tree import CallTree, Function

#: The colours of packages, starting with the heaviest package. All other packages are grey.
_COLOURS = (
    *(palette.SKY, palette.ORANGE, palette.GREEN, palette.PURPLE),
    *(palette.YELLOW, palette.BLUE, palette.VERMILION),
)
_INSTALLED = re.compile(r"(?:site|dist)-packages/([^/]{1,80})")
_STANDARD = re.compile(r"(?:^|/)lib/python\d(?:\.\d+)?/|^<frozen ")
#: Where perf looks up the names of functions that were compiled at run time.
_JIT_MAP = re.compile(r"(?:^|/)perf-\d{1,10}\.map$")
_OTHERS = "others"


def flame_data(
    tree: CallTree, unit: str, most: int, before: Floats | None = None, in_order: bool = False
) -> dict[str, Any]:
    """Return the data from which the browser draws a flame graph.

    Parameters
    ----------
    tree : CallTree
    unit : str
        The unit of its values: ``ms``, ``samples``, ``bytes`` or ``none``.
    most : int
        The maximum number of calls. The narrowest calls are left out, and their time is included in the calls around
        them.
    before : ndarray, optional
        Each call's own time in another profile, to show the difference.
    in_order : bool
        Whether the calls in the tree are in order of first appearance.
    """
    weight = tree.self if before is None else np.maximum(tree.self, before)
    total = tree.with_inner(weight)
    keys = [-total, phase_ranks(tree)]
    rows = tree.order(keys)
    rows = rows[total[rows] > 0]
    left = max(0, len(rows) - most)
    own, earlier = tree.self, before
    if left:
        least = np.partition(total[rows], left)[left]
        rows = rows[total[rows] >= least]
        if len(rows) > most:  # other calls are equally wide, so leave these out as well
            rows = rows[total[rows] > least]
        left = int((total > 0).sum()) - len(rows)
        kept = np.zeros(len(tree), dtype=bool)
        kept[rows] = True
        own = _given_up(tree, own, kept)
        earlier = None if earlier is None else _given_up(tree, earlier, kept)
    used, name = np.unique(tree.function[rows], return_inverse=True)
    functions = [tree.functions[place] for place in used.tolist()]
    packages = [package_of(each) for each in functions]
    groups, group = _groups(packages, np.bincount(name, weights=weight[rows], minlength=len(used)).astype(np.float64))
    data = {
        "unit": unit,
        "names": [escape.plain(word, 300) for word in _words(functions)],
        "places": [_place(each) for each in functions],
        "kinds": ["" if each.kind == "own" else each.kind for each in functions],
        "phases": [_phase(each) for each in functions],
        "groups": [mark.data for mark in groups],
        "group": group,
        "depth": tree.depth[rows].tolist(),
        "name": name.tolist(),
        "self": [fmt.short(value) for value in own[rows].tolist()],
        "left": left,
    }
    if before is not None and earlier is not None:
        data["before"] = [fmt.short(value) for value in earlier[rows].tolist()]
    if in_order:
        data["seen"] = rows.tolist()
    return data


def _phase(function: Function) -> Any:
    """Return the mark of a phase or of the loader workers."""
    if function.kind not in ("phase", "worker"):
        return None
    return palette.mark(function.name if function.kind == "phase" else "data").data


def phase_ranks(tree: CallTree) -> Ints:
    """Return a sort key that puts phases in their usual order, with loader workers last.

    The key is the same for all other calls.
    """
    last = len(PHASES)
    ranks = [
        (PHASES.index(each.name) if each.name in PHASES else last)
        if each.kind == "phase"
        else last + 1
        if each.kind == "worker"
        else 0
        for each in tree.functions
    ]
    return np.array(ranks, dtype=np.int64)[tree.function] if len(tree) else tree.function


def _given_up(tree: CallTree, values: Floats, kept: np.ndarray) -> Floats:
    """Return the values of the calls that are kept when other calls are left out.

    The value of a call that is left out is added to the innermost kept call around it.
    """
    values = values.copy()
    for level in reversed(tree.levels):
        gone = level[~kept[level] & (tree.parent[level] != NONE)]
        np.add.at(values, tree.parent[gone], values[gone])
    return values


def _groups(packages: list[str], weights: Floats) -> tuple[list[palette.Mark], list[int]]:
    """Return marks for the heaviest packages, and the index of each function's package."""
    sums: dict[str, float] = {}
    for package, weight in zip(packages, weights.tolist(), strict=True):
        sums[package] = sums.get(package, 0.0) + weight
    named = sorted((name for name in sums if name != _OTHERS), key=lambda name: (-sums[name], name))
    marks = [
        palette.Mark(escape.plain(name, 40), colour, "", "solid") for name, colour in zip(named, _COLOURS, strict=False)
    ]
    place = {name: number for number, name in enumerate(named[: len(marks)])}
    marks.append(palette.Mark(_OTHERS, palette.GREY, "", "none"))
    return marks, [place.get(package, len(marks) - 1) for package in packages]


def package_of(function: Function) -> str:
    """Return the package, library or folder that contains a function."""
    file, name = function.file.replace("\\", "/"), function.name
    if function.kind:
        return "your code" if function.kind == "own" else _OTHERS
    if found := _INSTALLED.search(file):
        return found[1].removesuffix(".py")
    if _STANDARD.search(file) or (not file and name.startswith(("<", "{"))):
        return "Python"
    if file.startswith("[") or ".so" in file:
        return file.strip("[]").rpartition("/")[2] or _OTHERS
    if _JIT_MAP.search(file):
        return "JIT"
    if file.startswith("/") and "." not in file.rpartition("/")[2]:  # a program
        return file.rpartition("/")[2] or _OTHERS
    if "/" in file:
        folders = file.strip("/").split("/")
        return folders[0] if not file.startswith("/") and ":" not in folders[0] else folders[-2 if folders[1:] else -1]
    if file:
        return file
    if name.endswith(("_[k]", "_[j]", "_[i]")):
        return {"k": "kernel", "j": "JIT", "i": "inlined"}[name[-2]]
    return name.partition("::")[0] if "::" in name else _OTHERS


def _words(functions: list[Function]) -> list[str]:
    """Return a label for each function.

    If a function occurs with several lines, its labels include the line, because its calls would otherwise look alike.
    """
    lines = Counter((each.name, each.file, each.kind) for each in functions)
    return [
        palette.mark(each.name).word
        if each.kind == "phase"
        else f"{each.name}:{each.line}"
        if each.line != NONE and lines[each.name, each.file, each.kind] > 1
        else each.name
        for each in functions
    ]


def _place(function: Function) -> str:
    """Return a function's file and line."""
    if not function.file:
        return ""
    line = "" if function.line == NONE else f":{function.line}"
    return escape.plain(f"{function.file}{line}", 300)
