"""A script in the style of Hugging Face's examples: a model, arguments and a Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tests.accuracy.scripts.data import ACCUMULATED, ROWS, Slow


def model() -> BertForSequenceClassification:
    """Return a small one."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=100, max_position_embeddings=64, **sizes))


def main(
    steps: int, callbacks: Sequence[Any] = (), wrapped: Callable[[Any], Any] | None = None, folder: str | None = None
) -> None:
    """Train for so many steps."""

    class Wrapping(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            return loader if wrapped is None else wrapped(loader)

    arguments = TrainingArguments(
        output_dir=folder or tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=ACCUMULATED,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    Wrapping(model(), arguments, train_dataset=Slow(), callbacks=list(callbacks)).train()


if __name__ == "__main__":
    main(80)
