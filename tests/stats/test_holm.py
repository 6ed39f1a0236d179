"""Many comparisons: adjusted p-values against arithmetic by hand, and few false differences among many."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfnb.stats.comparisons import compare_all, compare_pairs, compare_with_first, holm, ratio_table
from tests.system.machines import LOADS, steps


def test_by_hand() -> None:
    # 4 x 0.01; 3 x 0.02 = 0.06; 2 x 0.025 = 0.05, raised to the one before; 1 x 0.5.
    assert holm([0.02, 0.5, 0.01, 0.025]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert len(holm([])) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_adjusted_values_keep_the_order_and_lie_between_raw_and_bonferroni(values: list[float]) -> None:
    raw, adjusted = np.array(values), holm(values)

    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * len(raw)) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(raw)]) >= 0).all()
    assert adjusted.min() == pytest.approx(min(1, raw.min() * len(raw)))


def rounds(rng: np.random.Generator, names: list[str], count: int) -> dict[str, np.ndarray]:
    """Equal steps in rounds of random order, on a machine that another one loads on and off."""
    times = steps(rng, 1, count * len(names), LOADS["on and off"], 0.05).reshape(count, len(names))
    times = rng.permuted(times, axis=1)
    return dict(zip(names, times.T, strict=True))


def test_the_one_that_differs_is_found_in_all_its_comparisons() -> None:
    times = rounds(np.random.default_rng(52), ["cnn", "mlp", "vit"], 60)
    times["vit"] = times["vit"] * 1.2

    found = compare_all(times)

    assert list(found) == list(combinations(["cnn", "mlp", "vit"], 2))
    assert found["cnn", "vit"].verdict == found["mlp", "vit"].verdict == "slower"
    assert found["cnn", "mlp"].verdict in ("same", "inconclusive")
    for pair in (("cnn", "vit"), ("mlp", "vit")):
        assert found[pair].ratio == pytest.approx(1.2, abs=0.03)
        assert found[pair].confidence == pytest.approx(1 - 0.05 / 3)


def test_simultaneous_intervals_hold_all_ratios() -> None:
    rng = np.random.default_rng(53)
    held = 0
    for _ in range(100):
        found = compare_all(rounds(rng, list("abcd"), 25))
        held += all(c.ratio_ci is not None and c.ratio_ci[0] <= 1 <= c.ratio_ci[1] for c in found.values())

    assert held >= 90


def test_the_table_has_a_row_for_each_comparison() -> None:
    times = rounds(np.random.default_rng(54), ["a", "b", "c"], 20)

    table = ratio_table(compare_all(times))
    few = ratio_table(compare_all({name: values[:4] for name, values in times.items()}))

    assert list(table["baseline"] + table["candidate"]) == ["ab", "ac", "bc"]
    assert (table["ci_low"] <= table["ratio"]).all()
    assert (table["ratio"] <= table["ci_high"]).all()
    assert few["ci_low"].isna().all()
    assert set(few["verdict"]) == {"inconclusive"}
    assert ratio_table({}).columns.tolist() == table.columns.tolist()


def test_every_name_must_have_run_in_every_round() -> None:
    with pytest.raises(ValueError, match="each round"):
        compare_all({"a": [1.0] * 10, "b": [1.0] * 9})
    assert compare_all({"a": [1.0] * 10}) == {}


@pytest.mark.parametrize(("others", "verdict"), [(1, "slower"), (3, "slower"), (4, "inconclusive")])
def test_a_difference_counts_if_the_interval_or_the_adjusted_p_value_excludes_chance(others: int, verdict: str) -> None:
    # Of 7 differences, 1 of 64 cases is as extreme, and 4 comparisons ask for a p-value below 0.0125.
    a = np.full(7, 10.0)
    times = [
        a,
        1.5 * a * np.linspace(1.0, 1.1, 7),
        *(a * np.exp([0.5, -0.5, 0.4, -0.4, 0.3, -0.3, 0.0]) for _ in range(others - 1)),
    ]
    first, *rest = compare_with_first(np.array(times))
    assert (first.verdict, first.p_value) == (verdict, pytest.approx(others / 64))
    assert [one.verdict for one in rest] == ["inconclusive"] * len(rest)


def test_rows_are_compared_with_the_first_of_their_group_and_all_groups_together() -> None:
    rng = np.random.default_rng(2)
    a, b, c, d = (ms * rng.lognormal(0, 0.02, 20) for ms in (10.0, 10.2, 10.1, 9.0))

    assert compare_with_first(np.array([a, b])) == list(compare_all({"a": a, "b": b}).values())
    found = compare_with_first(np.array([a, b, c]), np.array([d, a]), np.array([b]))
    alone = [compare_pairs(np.log(y) - np.log(x), 0.02, 1 - 0.05 / 3) for x, y in ((a, b), (a, c), (d, a))]
    assert [(one.ratio, one.ratio_ci) for one in found] == [(one.ratio, one.ratio_ci) for one in alone]
    assert [one.p_value for one in found] == holm([one.p_value for one in alone]).tolist()
    assert compare_with_first(np.array([a])) == []
