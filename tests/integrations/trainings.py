"""Tiny trainings with Lightning and with Hugging Face's Trainer, offline, the same at every call.

Both packages take seconds to import and are only imported where a test trains: every process that runs tests imports
this module.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

ROWS = 8


def for_lightning(**options: Any) -> Any:
    """The callback for Lightning."""
    from perfnb.integrations.lightning import ProfileCallback

    return ProfileCallback(**options)


def for_transformers(**options: Any) -> Any:
    """The callback for Hugging Face's Trainer."""
    from perfnb.integrations.transformers import ProfileCallback

    return ProfileCallback(**options)


@functools.cache
def classifier() -> Any:
    """The class of a module for Lightning."""
    import lightning

    class Classifier(lightning.LightningModule):
        """Two layers with a dropout, which draws random numbers in every step."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
            self.validated = 0

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.validated += 1
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-3)

    return Classifier


def points(batches: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    count = batches * ROWS
    return TensorDataset(
        torch.randn(count, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)
    )


def fitted(
    folder: Path,
    *callbacks: Any,
    steps: int = 20,
    accumulate: int = 1,
    module: Any = None,
    validate: bool = False,
    epochs: int = 1,
    loader: Any = None,
    **options: Any,
) -> Any:
    """The module, after `steps` optimizer steps with Lightning in so many epochs."""
    import lightning

    torch.manual_seed(0)
    module = (classifier() if module is None else module)()
    with warnings.catch_warnings():
        # Lightning's advice on loaders, loggers and intervals, and whatever else is not perfnb's.
        warnings.filterwarnings("ignore", message="(?!perfnb)")
        trainer = lightning.Trainer(
            max_epochs=epochs,
            accumulate_grad_batches=accumulate,
            callbacks=list(callbacks),
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_model_summary=False,
            **{"accelerator": "cpu", "enable_checkpointing": False, "logger": False, **options},
        )
        batches = DataLoader(points(steps * accumulate // epochs), batch_size=ROWS) if loader is None else loader
        trainer.fit(module, batches, DataLoader(points(2), batch_size=ROWS) if validate else None)
    return module


class Sentences(Dataset[dict[str, Tensor]]):
    """Random tokens."""

    def __init__(self, count: int) -> None:
        self._tokens = torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self._tokens[place], "labels": self._tokens[place]}


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50,
            n_positions=16,
            n_embd=16,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )
    return model


def made_trainer(
    folder: Path,
    *callbacks: Any,
    steps: int = 20,
    accumulate: int = 1,
    trainer: Any = None,
    model: Callable[[], nn.Module] = language_model,
    batches: Any = None,
    **options: Any,
) -> Any:
    """A Trainer, or an instance of another class, of a small GPT-2 for `steps` optimizer steps."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=accumulate,
        max_steps=steps,
        report_to=[],
        disable_tqdm=True,
        **{"use_cpu": True, "save_strategy": "no", "logging_steps": 10, **options},
    )
    data = Sentences(steps * accumulate * ROWS) if batches is None else batches
    return (trainer or Trainer)(
        model(), arguments, train_dataset=data, eval_dataset=Sentences(2 * ROWS), callbacks=list(callbacks)
    )


def trained(folder: Path, *callbacks: Any, **options: Any) -> nn.Module:
    """The model, after `steps` optimizer steps with Hugging Face's Trainer."""
    trainer = made_trainer(folder, *callbacks, **options)
    trainer.train()
    model: nn.Module = trainer.model
    return model


def weights(module: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in module.state_dict().values()]


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have the same weights, bit for bit."""
    pairs = zip(weights(a), weights(b), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)
