"""Layers of two profiles are matched by name, then by class and place; what only one has took no time in the other."""

from __future__ import annotations

import pandas as pd
import pytest

from perfnb.diff.layers import diff_layers
from perfnb.recording.schema import conform


def layers(*rows: tuple[str, str, int, float]) -> pd.DataFrame:
    names, modules, depths, times = zip(*rows, strict=True)
    frame = pd.DataFrame({"module": modules, "depth": depths, "self_ms": times, "total_ms": times}, index=list(names))
    return conform(frame, "layers")


OLD = layers(
    ("net", "Net", 0, 1.0), ("net.a", "Linear", 1, 2.0), ("net.b", "Linear", 1, 3.0), ("net.c", "ReLU", 1, 0.5)
)


def test_the_same_profile_matches_by_name_and_grew_by_nothing() -> None:
    table = diff_layers(OLD, OLD)

    assert table["matched"].eq("name").all()
    assert table["a"].tolist() == table["b"].tolist() == ["net", "net.a", "net.b", "net.c"]
    assert table["grew_ms"].eq(0).all()


def test_what_has_another_name_is_matched_by_class_and_place() -> None:
    new = layers(
        ("net", "Net", 0, 1.0), ("net.x", "Linear", 1, 5.0), ("net.b", "Linear", 1, 3.0), ("net.y", "GELU", 1, 0.7)
    )

    table = diff_layers(OLD, new).set_index("a", drop=False)

    assert table.loc["net.a", ["b", "matched", "grew_ms"]].tolist() == ["net.x", "place", 3.0]
    assert table.loc["net.b", ["b", "matched", "grew_ms"]].tolist() == ["net.b", "name", 0.0]
    assert pd.isna(table.loc["net.c", "b"])
    assert table.loc["net.c", "grew_ms"] == -0.5
    assert pd.isna(table.loc["net.c", "self_ms_b"])
    (added,) = table[table["a"].isna()].to_dict("records")
    assert (added["b"], added["grew_ms"]) == ("net.y", 0.7)


def test_special_rows_are_matched_by_name_only() -> None:
    old, new = layers(("(loss)", "", 0, 1.0)), layers(("(unattributed)", "", 0, 1.0))

    assert diff_layers(old, new)["matched"].isna().all()


def test_growth_on_the_gpu_is_shown_next_to_that_on_the_host() -> None:
    new = layers(("net", "Net", 0, 1.0), ("net.a", "Linear", 1, 2.5), ("net.z", "GELU", 1, 1.0))
    a, b = (frame.assign(gpu_ms=9.0, self_gpu_ms=frame["self_ms"] * times) for frame, times in ((OLD, 10), (new, 2)))

    table = diff_layers(a, b).set_index("a", drop=False)

    assert table.loc["net.a", ["self_gpu_ms_a", "self_gpu_ms_b", "grew_ms", "grew_gpu_ms"]].tolist() == [
        20,
        5,
        0.5,
        -15,
    ]
    assert table.loc["net", ["gpu_ms_a", "gpu_ms_b"]].tolist() == [9, 9]
    assert table.loc["net.c", "grew_gpu_ms"] == -5.0
    # Where one has nothing on a GPU, nothing grew there.
    assert diff_layers(a, new)[["grew_gpu_ms", "self_gpu_ms_b"]].isna().all(axis=None)


def test_the_rounding_of_sums_is_not_growth_and_an_unknown_time_stays_unknown() -> None:
    def frame(*own: float | None) -> pd.DataFrame:
        names = [f"net.{place}" for place in range(len(own))]
        return conform(pd.DataFrame({"module": "Linear", "depth": 0, "self_ms": own}, index=names), "layers")

    table = diff_layers(frame(0.3, 5.0, None, 0.0), frame(0.1 + 0.2, 5.0 + 1e-9, None, 1e-15))

    grew = [None if pd.isna(one) else one for one in table["grew_ms"]]
    assert grew == [0.0, pytest.approx(1e-9, rel=1e-5), None, 1e-15]
