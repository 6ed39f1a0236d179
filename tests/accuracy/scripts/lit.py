"""A Lightning module and its trainer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.accuracy.scripts.data import ACCUMULATED, ROWS, Slow


class Classifier(lightning.LightningModule):
    """Embeds and classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(100, 128), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 2))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the loss."""
        return nn.functional.cross_entropy(self.net(batch["input_ids"]).mean(1), batch["labels"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Of all parameters."""
        return torch.optim.AdamW(self.parameters())


def main(
    steps: int, callbacks: Sequence[Any] = (), wrapped: Callable[[Any], Any] | None = None, folder: str | None = None
) -> None:
    """Train for so many steps."""
    torch.manual_seed(0)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    loader = DataLoader(Slow(), batch_size=ROWS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?!perfnb)")  # its advice on workers
        trainer = lightning.Trainer(
            max_steps=steps,
            accumulate_grad_batches=ACCUMULATED,
            callbacks=list(callbacks),
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(Classifier(), loader if wrapped is None else wrapped(loader))


if __name__ == "__main__":
    main(80)
