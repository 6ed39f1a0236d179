"""The state of the random number generators that a step may draw from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from perfnb.step.device import cuda_in_use


def random_state() -> tuple[Any, ...]:
    """The state of the generators of Python, NumPy and torch, on GPUs that are in use too."""
    on_gpu = torch.cuda.get_rng_state_all() if cuda_in_use() else None
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpu


def set_random_state(state: tuple[Any, ...]) -> None:
    """Put back what `random_state` returned."""
    of_python, of_numpy, of_torch, on_gpu = state
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    if on_gpu is not None:
        torch.cuda.set_rng_state_all(on_gpu)
