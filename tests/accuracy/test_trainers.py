"""A callback in a trainer's run of 300 steps: weights, figures compared with those of `profile_step`, cost per step."""

from __future__ import annotations

import contextlib
import functools
import io
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import perfnb
from tests.accuracy.judging import Figures
from tests.integrations.trainings import classifier, fitted, for_lightning, for_transformers, same, trained

pytestmark = pytest.mark.usefixtures("nothing_left")

_STEPS, _WINDOWS, _PAIRS = 300, (60, 120, 180, 240), 15
_WINDOW: dict[str, Any] = {"steps": 10, "traced": 5}
#: What the step owns; other is what else is alive in the process, such as the data set.
_MEMORY = ("parameters", "gradients", "optimizer_state", "activations", "inputs", "temporaries")
_ROWS, _TOKENS = 8, 64  # the rows are those of the trainings


@functools.cache
def wide() -> Any:
    """Return the class of a module for Lightning that is not tiny."""

    class Wide(classifier()):  # type: ignore[misc]
        """Steps of some milliseconds, so that what the trainer itself does in each is a small part."""

        def __init__(self) -> None:
            super().__init__()
            layers: list[nn.Module] = [nn.Linear(16, 512)]
            for _ in range(5):
                layers += [nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512)]
            self.net = nn.Sequential(*layers, nn.Linear(512, 4))

    return Wide


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    count = 128 * _STEPS
    return TensorDataset(
        torch.randn(count, 16, generator=generator), torch.randint(0, 4, (count,), generator=generator)
    )


class Texts(Dataset[dict[str, Tensor]]):
    """Random tokens."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 200, (count, _TOKENS), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[place], "labels": self.tokens[place]}


def gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=200,
            n_positions=_TOKENS,
            n_embd=96,
            n_layer=3,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )
    return model


def in_lightning(folder: Path, *callbacks: Any) -> nn.Module:
    module: nn.Module = fitted(folder, *callbacks, module=wide(), loader=DataLoader(points(), batch_size=128))
    return module


def in_transformers(folder: Path, *callbacks: Any) -> nn.Module:
    with contextlib.redirect_stdout(io.StringIO()):  # the losses
        return trained(folder, *callbacks, steps=_STEPS, model=gpt, batches=Texts(_STEPS * _ROWS))


def alone_as_in_lightning() -> perfnb.Profile:
    torch.manual_seed(0)
    model = wide()().train()
    model.log = lambda *_: None  # type: ignore[method-assign]
    optimizer = model.configure_optimizers()

    def step(batch: list[Tensor]) -> None:
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()
        optimizer.step()

    return perfnb.profile_step(step, DataLoader(points(), batch_size=128), warmup=10, **_WINDOW)


def alone_as_in_transformers() -> perfnb.Profile:
    model = gpt().train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    items = torch.tensor(_ROWS * _TOKENS)  # as the Trainer counts them

    def step(batch: dict[str, Tensor]) -> None:
        model(**batch, num_items_in_batch=items).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()

    return perfnb.profile_step(step, DataLoader(Texts(_STEPS * _ROWS), batch_size=_ROWS), warmup=10, **_WINDOW)


@pytest.mark.parametrize(
    ("name", "callback", "train", "alone"),
    [
        ("Lightning", for_lightning, in_lightning, alone_as_in_lightning),
        ("transformers", for_transformers, in_transformers, alone_as_in_transformers),
    ],
)
def test_a_run_of_300_steps(
    name: str,
    callback: Any,
    train: Callable[..., nn.Module],
    alone: Callable[[], perfnb.Profile],
    tmp_path: Path,
    figure: Figures,
) -> None:
    profiler = callback(at=_WINDOWS, keep_trace=True, **_WINDOW)
    profiled = train(tmp_path / "profiled", profiler)
    plain = train(tmp_path / "plain")
    figure(
        f"{name}: weights after 300 steps are those without the callback (1 = yes)", same(profiled, plain), at_least=1
    )

    assert len(profiler.profiles) == len(_WINDOWS)
    inside, outside = list(profiler.profiles), [alone() for _ in _WINDOWS]
    step_ms = statistics.median(float(profile.phases["ms"].sum()) for profile in outside)
    for table, column in (("phases", "ms"), ("layers", "total_ms")):
        rows = {row for profile in (*inside, *outside) for row in getattr(profile, table).index}
        apart = {row: abs(middle(inside, table, column, row) - middle(outside, table, column, row)) for row in rows}
        worst = max(apart, key=apart.__getitem__)
        figure(
            f"{name}: {table}, in the run and in profile_step, apart, of the step ({worst})",
            apart[worst] / step_ms,
            at_most=0.05,
            unit="%",
        )
    peaks = {
        what: [statistics.median(profile.memory[what].max() for profile in some) for some in (inside, outside)]
        for what in _MEMORY
    }
    whole = sum(other for _, other in peaks.values())
    bytes_apart = {what: abs(one - other) / whole for what, (one, other) in peaks.items()}
    worst = max(bytes_apart, key=bytes_apart.__getitem__)
    figure(
        f"{name}: peaks of memory, in the run and in profile_step, apart, of their sum ({worst})",
        bytes_apart[worst],
        at_most=0.05,
        unit="%",
    )


def middle(profiles: list[perfnb.Profile], table: str, column: str, row: str) -> float:
    """Return the median of a cell over profiles; a row that is not there took no time."""
    cells = [getattr(profile, table)[column].fillna(0.0).get(row, 0.0) for profile in profiles]
    return statistics.median(map(float, cells))


@pytest.mark.parametrize("name", ["Lightning", "transformers"])
def test_a_step_outside_the_window_costs_what_it_did(name: str, figure: Figures) -> None:
    from benchmarks import trainers

    [rest] = [rest for trainer, *rest in trainers.TRAINERS if trainer == name]
    before, after = (
        statistics.median(one / other for one, other in pairs)
        for pairs in (trainers.before_window(*rest), trainers.after_window(*rest, _PAIRS))
    )
    figure(f"{name}: step before the window, with / without the callback", before, at_most=1.01)
    # No promise: torch itself can stay slower after a profiler has run.
    figure(f"{name}: step after the window, with / without the callback", after, at_most=2.0)
