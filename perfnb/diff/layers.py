"""Match the layers of two profiles, and find the changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from perfnb.diff.step_times import StepChange
from perfnb.memory.table import MemorySummary
from perfnb.recording.nesting import NONE
from perfnb.recording.schema import PHASES, SPECIAL_ROWS
from perfnb.recording.text import TEXT

#: The figures that are compared for each layer.
FIGURES = ("forward_ms", "backward_ms", "total_ms", "self_ms", "share", "activation_bytes", "forward_flops")
GPU_FIGURES = ("gpu_ms", "self_gpu_ms")
NAME, PLACE = "name", "place"
#: The maximum length of the path in a layer's name, because a malicious name may contain thousands of dots.
_DEEPEST = 100
#: A change below this share of the times is attributed to rounding in their sums.
_ROUNDING = 1e-12


class Tables(Protocol):
    """The parts of a profile that are compared."""

    @property
    def name(self) -> str: ...
    @property
    def memory(self) -> MemorySummary | None: ...
    @property
    def layers(self) -> pd.DataFrame: ...
    @property
    def phases(self) -> pd.DataFrame: ...
    @property
    def findings(self) -> Any: ...


@dataclass(frozen=True)
class ProfileDiff:
    """The comparison of profile b with profile a.

    Attributes
    ----------
    a_name, b_name : str
        The titles of the profiles.
    a_peak_bytes, b_peak_bytes : int or None
        The peak memory of each profile.
    layers : DataFrame
        One row per layer in either profile, in the order of a. The columns are ``a`` and ``b`` (the layer's name in
        each profile, or missing), ``matched`` (name, place, or missing), ``module`` and ``depth``; for each of
        `FIGURES` and `GPU_FIGURES`, ``<figure>_a`` and ``<figure>_b``; and ``grew_ms`` and ``grew_gpu_ms`` (the change
        in the layer's own time on the host and the GPU, excluding the layers inside). GPU columns are missing if either
        profile does not contain GPU work.
    phases : DataFrame
        One row per phase, with ``ms_a``, ``ms_b`` and ``grew_ms``.
    findings : DataFrame
        One row per bottleneck in either profile. ``ms_a`` and ``ms_b`` are the most that removing it could save, and
        are missing if it does not cost any time. ``in_a`` and ``in_b`` are true if it was found in the respective
        profile.
    step : StepChange or None
        The comparison of the step times, if there is one.
    """

    a_name: str
    b_name: str
    a_peak_bytes: int | None
    b_peak_bytes: int | None
    layers: pd.DataFrame
    phases: pd.DataFrame
    findings: pd.DataFrame
    step: StepChange | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether both profiles contain GPU work."""
        return bool(self.layers["grew_gpu_ms"].notna().any())


def diff_profiles(a: Tables, b: Tables, step: StepChange | None = None) -> ProfileDiff:
    """Compare the tables of two profiles."""
    phases = pd.DataFrame({"ms_a": a.phases["ms"], "ms_b": b.phases["ms"]})
    phases = phases.loc[[name for name in PHASES if name in phases.index]]
    return ProfileDiff(
        a_name=a.name,
        b_name=b.name,
        a_peak_bytes=None if a.memory is None else a.memory.peak_bytes,
        b_peak_bytes=None if b.memory is None else b.memory.peak_bytes,
        layers=diff_layers(a.layers, b.layers),
        phases=phases.assign(grew_ms=phases["ms_b"] - phases["ms_a"]),
        findings=_diff_findings(a.findings, b.findings),
        step=step,
    )


def _diff_findings(a: Any, b: Any) -> pd.DataFrame:
    sides: dict[str, pd.Series] = {}
    for side, findings in (("a", a), ("b", b)):
        bounds = {} if findings is None else findings.table.groupby("bottleneck", sort=False)["bound_ms"].max()
        found = pd.Series(bounds, dtype="Float64")
        sides |= {f"ms_{side}": found, f"in_{side}": pd.Series(True, index=found.index)}
    table = pd.DataFrame(sides)
    table = table.assign(**{name: table[name].notna() for name in ("in_a", "in_b")})
    return table.loc[table[["ms_a", "ms_b"]].max(axis=1).sort_values(ascending=False, kind="stable").index]


def diff_layers(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Compare two ``layers`` frames; see `ProfileDiff`."""
    pairs = match_layers(a, b)
    of_a, of_b = (side.reset_index().rename(columns={"layer": "name"}) for side in (a, b))
    left = of_a.reindex([-1 if place is None else place for place, _, _ in pairs]).reset_index(drop=True)
    right = of_b.reindex([-1 if place is None else place for _, place, _ in pairs]).reset_index(drop=True)
    table = pd.DataFrame(
        {
            "a": left["name"],
            "b": right["name"],
            "matched": pd.Series([how for _, _, how in pairs], dtype=TEXT),
            "module": left["module"].where(left["module"].notna(), right["module"]),
            "depth": left["depth"].where(left["depth"].notna(), right["depth"]),
        }
    )
    for name in (*FIGURES, *GPU_FIGURES):
        table[f"{name}_a"], table[f"{name}_b"] = left[name], right[name]
    # If a layer is missing on one side, it took no time there.
    own, own_gpu = (
        [side[time].mask(side["name"].isna(), 0.0) for side in (left, right)] for time in ("self_ms", "self_gpu_ms")
    )
    grew_gpu = own_gpu[1] - own_gpu[0]
    if not on_gpu(a, b):
        grew_gpu = grew_gpu.mask(grew_gpu.notna())
    grew = own[1] - own[0]
    same = (grew.abs() < _ROUNDING * (own[0] + own[1])).fillna(False)  # unknown values stay unknown
    return table.assign(grew_ms=grew.mask(same, 0.0), grew_gpu_ms=grew_gpu)


def on_gpu(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    """Return whether both ``layers`` frames contain GPU work."""
    return all(bool((side["self_gpu_ms"].fillna(0) > 0).any()) for side in (a, b))


def match_layers(a: pd.DataFrame, b: pd.DataFrame) -> list[tuple[int | None, int | None, str | None]]:
    """Match the rows of a and b that represent the same layer.

    Return the index in a, the index in b, and how the two were matched, in the order of a. Layers are first matched by
    name. Of the remaining layers, the n-th layer with a given class and depth is matched with the n-th such layer in
    the other profile.
    """
    places = {name: place for place, name in reversed(list(enumerate(map(str, b.index))))}
    found: dict[int, tuple[int, str]] = {}
    for place, name in enumerate(map(str, a.index)):
        if name in places:
            found[place] = (places.pop(name), NAME)
    free: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        if name not in SPECIAL_ROWS:
            free[_key(b, place)].append(place)
    for place, name in enumerate(map(str, a.index)):
        if place not in found and name not in SPECIAL_ROWS and free.get(_key(a, place)):
            found[place] = (free[_key(a, place)].pop(0), PLACE)
    taken = {place for place, _ in found.values()}
    alone = [(None, place, None) for place in range(len(b)) if place not in taken]
    return [(place, *found.get(place, (None, None))) for place in range(len(a))] + alone


def _key(layers: pd.DataFrame, place: int) -> tuple[str, int]:
    row = layers.iloc[place]
    return str(row["module"]), -1 if pd.isna(row["depth"]) else int(row["depth"])


def layer_tree(diff: ProfileDiff) -> tuple[list[int], list[float]]:
    """Return the row of each layer's parent (-1 for none), and the sum of the changes in own time in its subtree."""
    table = diff.layers
    places: dict[str, dict[str, int]] = {"a": {}, "b": {}}
    parents = []
    for row, names in enumerate(zip(table["a"], table["b"], strict=True)):
        known = {side: str(name) for side, name in zip("ab", names, strict=True) if not pd.isna(name)}
        side, name = next(iter(known.items()))
        parents.append(next((places[side][path] for path in _paths_above(name) if path in places[side]), NONE))
        for side, name in known.items():
            places[side].setdefault(name, row)
    weights = table["grew_gpu_ms" if diff.on_gpu else "grew_ms"].astype("Float64").abs().fillna(0.0).to_numpy(float)
    for row in range(len(parents) - 1, -1, -1):
        if parents[row] != NONE:
            weights[parents[row]] += weights[row]
    return parents, weights.tolist()


def _paths_above(name: str) -> Iterator[str]:
    for _ in range(_DEEPEST):
        name, dot, _ = name.rpartition(".")
        if not dot:
            return
        yield name
