"""What `estimate_memory` cannot work with is refused in a sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from perfnb.estimate import estimate_memory


def test_what_is_no_model_no_loss_and_no_number_of_bytes_is_refused() -> None:
    batch = torch.ones(2, 4)
    with pytest.raises(TypeError, match="model must be a torch module, not int"):
        estimate_memory(3, batch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss must be a function such as"):
        estimate_memory(nn.Linear(4, 4), batch, loss="mse")  # type: ignore[arg-type]
    for wrong in ("8GiB", -1, float("nan")):
        with pytest.raises(ValueError, match="bytes must be a number that is not negative"):
            estimate_memory(nn.Linear(4, 4), batch).largest_batch(wrong)  # type: ignore[arg-type]
