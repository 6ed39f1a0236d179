"""A callback has some steps of a trainer's run profiled; the run itself is unchanged."""

from __future__ import annotations

import importlib
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import perfnb
from perfnb.errors import PerfnbError
from tests.integrations.trainings import (
    ROWS,
    Sentences,
    classifier,
    fitted,
    for_lightning,
    for_transformers,
    made_trainer,
    points,
    same,
    trained,
)

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

#: A window of eleven steps.
SHORT: dict[str, Any] = {"steps": 4}
OWN = "perfnb.integrations.transformers"
EACH = pytest.mark.parametrize(("callback", "train"), [(for_lightning, fitted), (for_transformers, trained)])

Train = Callable[..., nn.Module]


@EACH
def test_a_profile_has_layers_phases_and_memory(callback: Any, train: Train, tmp_path: Path) -> None:
    told: list[perfnb.Profile] = []
    profiler = callback(at=5, on_done=told.append, **SHORT)

    train(tmp_path, profiler)

    [profile] = profiler.profiles
    assert [one.meta["name"] for one in told] == [profile.meta["name"]]
    assert profiler.run is not None
    assert "20 steps" in str(profiler.run)
    passes = profile.steps["pass"].astype(str).value_counts()
    assert (passes["timed"], passes["traced"], passes["counted"]) == (4, 3, 2)
    assert set(profile.steps["samples"]) == {ROWS}
    assert (profile.steps["data_ms"] > 0).all()
    assert profile.phases["ms"].drop(["host_to_device", "communication"]).gt(0).all()
    assert profile.layers["calls"].max() == 1
    assert "model" in profile.layers.index
    assert profile.memory["optimizer_state"].max() > 0
    assert [one["name"] for one in profile.meta["parts"]["optimizers"]] == ["optimizer"]
    assert profile.meta["parts"]["loader"]["num_workers"] == 0


def test_the_structure_is_that_of_the_same_step_profiled_alone(tmp_path: Path) -> None:
    in_lightning = for_lightning(at=5, **SHORT)
    fitted(tmp_path, in_lightning)
    module = classifier()().train()
    optimizer = module.configure_optimizers()
    model = module  # the name that the callback gives it
    module.log = lambda *_: None  # type: ignore[method-assign]

    def step(batch: list[Tensor]) -> None:
        optimizer.zero_grad()
        model.training_step(batch, 0).backward()
        optimizer.step()

    alone = perfnb.profile_step(step, [list(points(1).tensors)], warmup=2, steps=4)
    a, b = in_lightning.profiles[0], alone
    counted = ["module", "depth", "calls", "forward_flops", "backward_flops", "parameters", "activation_bytes", "ops"]
    layers = [profile.layers[counted].dropna(subset="module").reset_index() for profile in (a, b)]
    pd.testing.assert_frame_equal(*layers)
    inside = [profile.layer_ops.query("layer.str.startswith('model')", engine="python") for profile in (a, b)]
    columns = ["layer", "op", "direction", "calls"]
    assert rows(inside[0][columns]) == rows(inside[1][columns])
    known = [profile.ops[["calls", "flops", "bytes"]].query("flops > 0").reset_index() for profile in (a, b)]
    assert rows(known[0]) == rows(known[1])
    for category in ("parameters", "gradients", "optimizer_state"):
        assert a.memory[category].max() == b.memory[category].max()


def rows(table: pd.DataFrame) -> set[tuple[Any, ...]]:
    return set(map(tuple, table.astype(object).itertuples(index=False)))


def test_validation_and_checkpoints_are_no_steps(tmp_path: Path) -> None:
    profiler = for_lightning(at=5, **SHORT)
    options: dict[str, Any] = {"steps": 40, "enable_checkpointing": True}
    # A validation draws random numbers: each iterator of a loader takes a seed.
    options |= {"validate": True, "val_check_interval": 18}
    module = fitted(tmp_path / "profiled", profiler, **options)

    [profile] = profiler.profiles
    assert module.validated > 0
    assert profile.layers["calls"].max() == 1
    assert set(profile.steps["samples"]) == {ROWS}
    assert_validation_is_between_steps(profiler.run, 40)
    assert same(module, fitted(tmp_path / "plain", **options))


def test_evaluation_and_checkpoints_are_no_steps(tmp_path: Path) -> None:
    profiler = for_transformers(at=5, **SHORT)
    options = {"eval_strategy": "steps", "eval_steps": 18, "save_strategy": "steps", "save_steps": 7}

    model = trained(tmp_path, profiler, **options)

    [profile] = profiler.profiles
    assert profile.layers["calls"].max() == 1
    assert (tmp_path / "checkpoint-7").exists()
    assert_validation_is_between_steps(profiler.run, 20)
    assert same(model, trained(tmp_path, **options))


def assert_validation_is_between_steps(run: Any, steps: int) -> None:
    """Whether only the steps of training are counted, and the rest is time between steps."""
    assert run.steps["steps"].sum() == steps
    assert run.phases["ms"]["other"] > 0


@EACH
def test_a_window_that_never_fits_before_a_validation_is_reported(callback: Any, train: Train, tmp_path: Path) -> None:
    options = (
        {"validate": True, "val_check_interval": 5}
        if callback is for_lightning
        else {"eval_strategy": "steps", "eval_steps": 5}
    )
    profiler = callback(at=5, **SHORT)

    with pytest.warns(RuntimeWarning, match="no window of 11 fitted between step 5 and a validation") as said:
        plain = train(tmp_path, profiler, steps=30, **options)

    assert len([one for one in said if one.category is RuntimeWarning]) == 1
    assert not profiler.profiles
    assert same(plain, train(tmp_path, steps=30, **options))


class Broken(Exception):
    """What a user's code raises."""


@EACH
@pytest.mark.parametrize(("where", "place"), [("data", 7), ("step", 10), ("step", 14)])
def test_a_failure_reaches_the_user_after_everything_was_removed(
    callback: Any, train: Train, where: str, place: int, tmp_path: Path
) -> None:
    """In the timed pass, in the traced one, and in one that counts."""
    with pytest.raises(Broken, match="mine"):
        train(tmp_path, callback(at=5, **SHORT), **failing(callback, where, place, Broken("mine")))

    assert not torch.autograd._profiler_enabled()


def failing(callback: Any, where: str, place: int, error: BaseException) -> dict[str, Any]:
    """Return options of a training that fails while it waits for data, or in its step, after so many steps."""
    from transformers import Trainer

    done = [0]

    class Batches(Sentences):
        def __getitem__(self, index: int) -> Any:
            done[0] += 1
            if done[0] > place * ROWS:
                raise error
            return points(1)[index % ROWS] if callback is for_lightning else super().__getitem__(index)

    class FailingStep:
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            done[0] += 1
            if done[0] > place:
                raise error
            return super().training_step(*args, **kwargs)  # type: ignore[misc]

    batches = Batches(30 * ROWS)
    if callback is for_lightning:
        if where == "data":
            return {"loader": torch.utils.data.DataLoader(batches, batch_size=ROWS)}
        return {"module": type("Failing", (FailingStep, classifier()), {})}
    return {"batches": batches} if where == "data" else {"trainer": type("Failing", (FailingStep, Trainer), {})}


def test_an_interrupt_ends_a_trainer_as_without(tmp_path: Path) -> None:
    options = failing(for_transformers, "step", 10, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, for_transformers(at=5, **SHORT), **options)
    assert not torch.autograd._profiler_enabled()


def test_an_interrupt_ends_lightning_as_without(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        options = failing(for_lightning, "step", 10, KeyboardInterrupt())
        with pytest.raises(SystemExit):  # what Lightning makes of it
            fitted(tmp_path, for_lightning(at=5, **SHORT), **options)
    finally:
        signal.signal(signal.SIGINT, before)  # Lightning ignores it from then on
    assert not torch.autograd._profiler_enabled()


def test_an_optimizer_that_fails_leaves_nothing_even_if_the_callback_was_added_late(tmp_path: Path) -> None:
    done = [0]

    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            done[0] += 1
            if done[0] > 10:
                raise Broken("mine")
            return super().step(closure)

    trainer = made_trainer(tmp_path)
    trainer.add_callback(for_transformers(at=5, **SHORT))
    before = set(vars(trainer))
    trainer.optimizer = Failing(trainer.model.parameters(), 0.1)

    with pytest.raises(Broken, match="mine"):
        trainer.train()

    assert not torch.autograd._profiler_enabled()
    assert {name for name, value in vars(trainer).items() if callable(value)} <= before
    assert "call_event" not in vars(trainer.callback_handler)


@pytest.mark.deep
def test_lightning_under_its_older_name(tmp_path: Path) -> None:
    script = f"""
import warnings
warnings.simplefilter("ignore")
import torch
import pytorch_lightning
from perfnb.integrations.lightning import ProfileCallback

class Small(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 4)
    def training_step(self, batch, i):
        return self.net(batch).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

callback = ProfileCallback(at=2, steps=2)
assert isinstance(callback, pytorch_lightning.Callback)
pytorch_lightning.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    accelerator="cpu", default_root_dir={str(tmp_path)!r}, callbacks=callback,
).fit(Small(), torch.utils.data.DataLoader(torch.randn(40, 4)))
assert len(callback.profiles) == 1, callback.profiles
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("steps_every", [4, None])
def test_manual_optimization_may_accumulate_or_use_optimizers_that_lightning_does_not_know(
    steps_every: int | None, tmp_path: Path
) -> None:
    class Manual(classifier()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.count = 0

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx))
            self.count += 1
            optimizer: Any = self.optimizers(use_pl_optimizer=steps_every is not None)
            if self.count % (steps_every or 4) == 0:
                optimizer.step()
                optimizer.zero_grad()

    profiler = for_lightning(at=5, **SHORT)
    fitted(tmp_path, profiler, module=Manual, steps=80)

    [profile] = profiler.profiles
    assert set(profile.steps["samples"]) == {(steps_every or 1) * ROWS}
    assert ("per batch" in str(profile)) == (steps_every is None)


class Without(MetaPathFinder):
    """Makes one module seem not to be installed."""

    def __init__(self, missing: str) -> None:
        self._missing = missing

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "transformers":
            raise ModuleNotFoundError(name=self._missing)


def test_without_transformers_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in (OWN, "transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Without("transformers"), *sys.meta_path])
    with pytest.raises(PerfnbError, match="needs transformers, which is not installed here: pip install"):
        importlib.import_module(OWN)
    monkeypatch.setattr(sys, "meta_path", [Without("tokenizers"), *sys.meta_path[1:]])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(OWN)


def test_a_trainer_is_only_imported_by_its_own_module() -> None:
    package = Path(perfnb.__file__).parent
    of_trainers = r"^\s*(import|from) (lightning|pytorch_lightning|transformers|accelerate)\b"
    files = package.rglob("*.py")
    found = [path for path in files if re.search(of_trainers, path.read_text("utf-8"), re.MULTILINE)]
    assert [str(path.relative_to(package)) for path in found] == ["integrations/transformers.py"]


def test_a_callback_can_be_sent_to_another_process() -> None:
    callback = pickle.loads(pickle.dumps(for_lightning(at=7, steps=2)))
    assert callback._steps.driver.next_at == 7
    assert callback._steps.driver.length == 9


@pytest.mark.slow
def test_manual_optimization_has_a_step_per_batch(tmp_path: Path) -> None:
    import lightning

    class Adversaries(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> None:
            for optimizer, layer in zip(self.optimizers(), (self.first, self.second), strict=True):
                optimizer.zero_grad()
                self.manual_backward(layer(batch[0]).square().mean())
                optimizer.step()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(layer.parameters(), 0.1) for layer in (self.first, self.second)]

    profiler = for_lightning(at=5, **SHORT)
    fitted(tmp_path, profiler, module=Adversaries)

    [profile] = profiler.profiles
    assert profile.layers.loc[["model.first", "model.second"], "calls"].tolist() == [1, 1]
    assert [one["name"] for one in profile.meta["parts"]["optimizers"]] == ["optimizers[0]", "optimizers[1]"]
