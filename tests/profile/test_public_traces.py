"""Traces that other people's programs wrote, loaded as profiles and compared with facts computed by plain means.

The files are not part of the project; see the README next to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import perfnb
from tests.public_profiles import events_of, profile_of
from tests.trace.test_public_traces import expected, pytestmark

__all__ = ["pytestmark"]

TABLES = ("events", "steps", "layers", "layer_ops", "ops", "phases", "kernels", "gpu_time")


# For the whole module, so that tests of one file follow each other.
@pytest.fixture(scope="module", params=sorted(expected()))
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


@pytest.mark.slow
def test_phases_add_up_to_the_steps_and_ops_are_counted(name: str) -> None:
    profile, facts = profile_of(name), expected()[name]

    steps = profile.steps
    assert profile.phases["ms"].sum() == pytest.approx(steps["wall_ms"].mean(), rel=1e-9)
    marked = {e["name"] for e in events_of(name) if e["name"].startswith("ProfilerStep#") and e["cat"][:3] != "gpu"}
    numbers = sorted(int(mark.partition("#")[2]) for mark in marked) or [0]
    assert steps["step"].tolist() == numbers
    assert len(marked) == facts["profiler_steps"]
    ops, events = profile.ops, profile.events
    of_ops = events[(events["category"] == "cpu_op") & events["name"].isin(ops.index)]
    counts = of_ops[of_ops["step"].notna()]["name"].value_counts()
    assert (ops["calls"] * len(steps)).round().to_dict() == counts[counts > 0].to_dict()
    outside = set(of_ops[of_ops["step"].isna()]["name"])
    for op in facts["top_cpu_ops_by_total"]:
        if op["name"] in ops.index and op["name"] not in outside:
            assert ops.loc[op["name"], "calls"] * len(steps) == pytest.approx(op["calls"])
            # Calls inside a call to the same op are in the sum of durations twice.
            assert ops.loc[op["name"], "total_cpu_ms"] * len(steps) * 1e3 <= op["total_us"] * (1 + 1e-9)


@pytest.mark.slow
def test_it_prints_and_becomes_a_page_and_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    profile, file = profile_of(name), Path(name).name

    again = perfnb.load(profile.save(tmp_path / "saved"))

    text = str(profile)
    assert str(again) == text
    assert again.meta == profile.meta
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(again, table), getattr(profile, table))
    assert text.startswith(f"perfnb · profile · {file} · ")
    assert f"read from {file}, which has no timed steps" in " ".join(text.split())
    assert file in profile.to_html(tmp_path / "page.html").read_text("utf-8")
    assert file in repr(profile)


@pytest.mark.slow
def test_a_layer_has_the_backward_of_the_ops_that_ran_in_it() -> None:
    name = "kineto/mi300_ddp_resnet18.json.gz"
    events = events_of(name)
    modules = [event for event in events if event["name"].startswith("nn.Module: ")]
    forward = [e for e in events if e["args"].get("Sequence number", -1) >= 0 and not e["args"].get("Fwd thread id")]
    nodes = [e for e in events if e["name"].startswith("autograd::engine::evaluate_function")]
    own: Counter[str] = Counter()
    for node in nodes:
        number = node["args"].get("Sequence number", -1)
        made = [e for e in forward if e["args"]["Sequence number"] == number and e["ts"] < node["ts"]]
        if number < 0 or not made:
            continue
        at = max(made, key=lambda e: e["ts"])["ts"]
        around = [m for m in modules if m["ts"] <= at < m["ts"] + m["dur"]]
        if around:
            own[max(around, key=lambda m: m["ts"])["name"].removeprefix("nn.Module: ")] += node["dur"]

    layers = profile_of(name).layers

    modules_of = layers[layers["module"].notna()]
    assert len(modules_of) == len({m["name"] for m in modules if not m["name"].split(" ")[1].startswith("CrossE")})
    leaves = [path for path in modules_of.index if not any(other.startswith(path + ".") for other in modules_of.index)]
    assert len(leaves) > 40
    for path in leaves:
        assert modules_of.loc[path, "backward_ms"] == pytest.approx(own[path.split(".")[-1]] / 1e3, abs=1e-6), path
    assert modules_of["forward_ms"].iloc[0] == pytest.approx(
        sum(m["dur"] for m in modules if m["name"] == "nn.Module: ResNet_0") / 1e3
    )
    assert modules_of["calls"].sum() == len(modules)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "count"), [("h100_bert_small", 84), pytest.param("mi300_owlv2_large", 466, marks=pytest.mark.deep)]
)
def test_a_layer_takes_as_long_as_its_calls_did(model: str, count: int) -> None:
    name = f"kineto/{model}.json.gz"

    layers = profile_of(name).layers

    calls: dict[str, list[float]] = {}
    for event in events_of(name):
        if event["name"].startswith("nn.Module: "):
            calls.setdefault(event["name"].removeprefix("nn.Module: "), []).append(event["dur"])
    assert len(calls) == count
    layers = layers[layers["module"].notna()].assign(label=lambda rows: [path.split(".")[-1] for path in rows.index])
    assert sorted(layers["label"]) == sorted(calls)
    for row in layers.itertuples():
        assert row.calls == len(calls[row.label])
        assert row.forward_ms == pytest.approx(sum(calls[row.label]) / 1e3, abs=1e-6)
        assert row.module == row.label.rpartition("_")[0]
    assert (layers["backward_ms"] == 0).all()
    assert layers["self_ms"].sum() == pytest.approx(layers["total_ms"][layers["depth"] == 0].sum())
