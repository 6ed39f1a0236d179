"""A profile of a step without backward says that it is inference, and where to look for latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.step.data_waits import token_count

BRIEF: dict[str, Any] = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


def test_token_ids_of_the_input_are_counted_where_a_batch_names_them(tmp_path: Path) -> None:
    model = nn.Embedding(10, 4)
    batches = [{"input_ids": torch.zeros(2, 6, dtype=torch.long), "attention_mask": torch.ones(2, 6)}] * 3

    def infer(batch: dict[str, torch.Tensor]) -> None:
        with torch.inference_mode():
            model(batch["input_ids"])

    def train(batch: dict[str, torch.Tensor]) -> None:
        model(batch["input_ids"]).sum().backward()

    served, trained = (perfnb.profile_step(step, batches, model=model, **BRIEF) for step in (infer, train))

    again = perfnb.load(served.save(tmp_path / "kept"))
    for profile, inference in ((served, True), (again, True), (trained, False)):
        assert profile._summary.tokens_per_s == pytest.approx(12e3 / (profile.timing.median_ms or 0))
        assert ("This is inference: there was no backward pass." in str(profile)) == inference
        assert " tokens/s" in str(profile)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(2, 6, dtype=torch.long), 12),
        ((torch.zeros(2, 6, dtype=torch.int32), torch.zeros(2, dtype=torch.long)), 12),
        ({"input_ids": torch.zeros(2, 6, dtype=torch.long), "pixels": torch.zeros(2, 3)}, 12),
        ({"input_ids": torch.zeros(2, 6)}, None),
        ((torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 3)), None),  # categories next to other features
        ((torch.zeros(2, 6), torch.zeros(2, 6, dtype=torch.long)), None),
        (torch.zeros(2, 6, dtype=torch.uint8), None),
        (torch.zeros(2, 1, dtype=torch.long), None),
        (torch.zeros(6, dtype=torch.long), None),
        ([], None),
    ],
)
def test_token_ids_are_whole_numbers_of_shape_batch_by_sequence(batch: Any, count: int | None) -> None:
    assert token_count(batch) == count
