"""Simulations with few runs behind their intervals, for tests of everything but those; a machine that is idle."""

from __future__ import annotations

import os
from typing import Any

import pytest

from perfnb.inference import load_model
from tests.inference.latency_samples import FEW_RUNS


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def simulated(*arguments: Any, simulate: Any = load_model.simulate, **options: Any) -> Any:
        return simulate(*arguments, **options | {"runs": FEW_RUNS})

    monkeypatch.setattr(load_model, "simulate", simulated)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict depends on what else runs on the machine."""
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
