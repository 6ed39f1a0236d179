"""What tests of several labs take for granted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from perfnb.results import ArchitectureComparison
from tests.labs.lab_05_answers import figures_of


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the labs, torch computes in one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def comparison() -> ArchitectureComparison:
    """Lab 5's comparison of three models, by figures that are known."""
    return figures_of()
