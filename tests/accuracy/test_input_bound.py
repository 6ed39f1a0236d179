"""A loader with workers: how long its batches take, and what of the wait the model hides."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

import perfnb
from tests.accuracy.judging import Figures
from tests.bench.test_input_bound import Model, Sleeping, trainer

pytestmark = pytest.mark.usefixtures("feeders_end")


@pytest.fixture
def feeders_end(nothing_left: None) -> Iterator[None]:
    """Wait for the threads that feed a loader's workers: multiprocessing ends them a moment after the workers."""
    yield
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(60)


def test_workers_halve_the_wait_and_hide_the_model(figure: Figures) -> None:
    loader = DataLoader(Sleeping(7.5), batch_size=4, num_workers=2)
    model = Model(3)
    test = perfnb.confirm_input_bound(trainer(model), loader, model, budget_s=6)

    times = test.times["median_ms"]
    for kind in ("iteration", "loader", "together"):
        name = f"30 ms batches from two workers, 3 ms model: {kind}"
        figure(name, float(times[kind]), within=(14.0, 18.0), unit="ms")
    saved = float(test.saved_ms / (times["together"] - times["model"]))
    figure("the same: saved_ms / remaining wait", saved, within=(0.8, 1.2))
