"""A profile of a step without backward says that it is inference, and where to look for latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.step.data_waits import token_count

SAID = "This is inference: there was no backward pass."
BRIEF: dict[str, Any] = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False}


def test_only_a_step_without_backward_and_optimizer_is_inference() -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def infer() -> None:
        with torch.inference_mode():
            model(x)

    def train() -> None:
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()

    served, trained = (perfnb.profile_step(step, model=model, **BRIEF) for step in (infer, train))

    assert SAID in str(served)
    assert any(note.startswith(SAID) for note in served._document().notes)
    assert not any(note.startswith(SAID) for note in trained._document().notes)


def test_token_ids_of_the_input_are_counted_where_a_batch_names_them() -> None:
    model = nn.Embedding(10, 4)
    batches = [{"input_ids": torch.zeros(2, 6, dtype=torch.long), "attention_mask": torch.ones(2, 6)}] * 3

    def infer(batch: dict[str, torch.Tensor]) -> None:
        with torch.inference_mode():
            model(batch["input_ids"])

    def train(batch: dict[str, torch.Tensor]) -> None:
        model(batch["input_ids"]).sum().backward()

    served, trained = (perfnb.profile_step(step, batches, model=model, **BRIEF) for step in (infer, train))

    assert served._summary.tokens_per_s == pytest.approx(12e3 / (served.timing.median_ms or 0))
    for text in (str(served), served._repr_mimebundle_()["text/html"]):
        assert " tokens/s" in text
        assert "inference" in text
    assert trained._summary.tokens_per_s == pytest.approx(12e3 / (trained.timing.median_ms or 0))
    assert "inference" not in str(trained)
    assert " tokens/s" in str(trained)


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


def test_whole_numbers_of_a_model_without_an_embedding_are_no_tokens() -> None:
    model, batch = nn.Linear(6, 1), torch.zeros(2, 6, dtype=torch.long)

    found = perfnb.profile_step(lambda ids: model(ids.float()).sum().backward(), [batch] * 3, model=model, **BRIEF)

    assert found._summary.tokens_per_s is None
    assert "tokens/s" not in str(found)


def test_a_saved_profile_keeps_its_tokens(tmp_path: Path) -> None:
    model, batch = nn.Embedding(10, 4), {"input_ids": torch.zeros(2, 6, dtype=torch.long)}
    found = perfnb.profile_step(lambda batch: model(batch["input_ids"]), [batch] * 3, model=model, **BRIEF)

    again = perfnb.load(found.save(tmp_path / "kept"))

    assert again._summary.tokens_per_s == found._summary.tokens_per_s is not None
