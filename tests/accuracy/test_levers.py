"""Levers on steps with one cause planted: the cure is found and kept, and saves no more than the finding's bound."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.remedies import levers
from perfnb.remedies.lever import Lever
from tests.accuracy.judging import Figures
from tests.lever_steps import PLANTED, Curable

CORES = len(os.sched_getaffinity(0))


@contextmanager
def with_threads(curable: Curable) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(curable.threads or CORES)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cause", PLANTED)
def test_the_cure_is_found_and_saves_no_more_than_the_bound(cause: str, figure: Figures) -> None:
    curable = PLANTED[cause]()
    with with_threads(curable):
        profile = perfnb.profile_step(curable.step, curable.batches, budget_s=5, memory=False)
        found = perfnb.try_levers(curable.step, curable.batches, budget_s=40)
    print(found)
    kept = [name for name in found.best if name in curable.cures]
    figure(f"levers: {cause}: {' or '.join(curable.cures)} kept (1 = yes)", bool(kept), at_least=1)
    row = found.table.loc[kept[0]]
    figure(f"levers: {cause}: {kept[0]}, time / time without", float(row["ratio"]), at_most=1.0)
    figure(f"levers: {cause}: {kept[0]}, upper end of the interval", float(row["ratio_high"]), at_most=1.0)
    # The least that it saves, by its interval: the finding's bound is the most that anything could. Shares, because the
    # machine's pace changes from the profile to the trials.
    if pd.notna(row["bound_ms"]):  # no finding names too few threads: they are tried because it costs nothing
        answered = levers.by_name()[kept[0]].answers
        bounds = profile.findings.set_index("bottleneck")["bound_share"]
        bound = max(float(bounds[name]) for name in answered if name in bounds.index)
        figure(f"levers: {cause}: least saving / bound", (1 - float(row["ratio_high"])) / bound, at_most=1.0)


def test_idle_levers_are_never_confirmed(figure: Figures, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nothing(_: Any) -> Iterator[None]:
        yield

    @contextmanager
    def prepared(subject: Any) -> Iterator[Any]:
        yield lambda: nothing(subject)

    names = [f"idle {number}" for number in range(10)]
    idle = [Lever(name, "does nothing", lambda _: "", prepared, lambda _: []) for name in names]
    monkeypatch.setattr(levers, "LEVERS", (*levers.LEVERS, *idle))
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    opt, x = torch.optim.SGD(model.parameters(), lr=1e-3), torch.randn(64, 256)

    def step() -> None:
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()

    runs = [perfnb.try_levers(step, levers=names, budget_s=8) for _ in range(20)]
    called = sum(bool((run.table["verdict"] == "faster").any()) for run in runs)
    print(f"called faster in a first trial, in {called} of 20 runs")
    figure("levers: 20 runs of ten that do nothing: confirmed", sum(bool(run.best) for run in runs), at_most=0)
