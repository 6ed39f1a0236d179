"""Stand-ins for experiment trackers, which record each call with its arguments, and bind it as the real one does."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Calls(list[tuple[str, dict[str, Any]]]):
    """What was called, in order. A file is recorded with its text, because it is removed afterwards."""

    def method(self, name: str, signature: Callable[..., Any], fails: str = "") -> Callable[..., Any]:
        """Return a method that is recorded, called with what `signature` allows."""

        def call(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(signature).bind(*args, **kwargs).arguments
            for place, value in given.items():
                if isinstance(value, str) and value.endswith(".html") and Path(value).is_file():
                    given[place] = (Path(value).name, Path(value).read_text("utf-8"))
            self.append((name, dict(given)))
            if fails:
                raise ValueError(fails)
            return "something"  # what trackers return is no note

        return call

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of each call with this name."""
        return [given for called, given in self if called == name]


def tracker_module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    """Return a loaded module with members of these names."""
    module = ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def made_by(module: ModuleType, **members: Any) -> Any:
    """Return an object of a class of this module."""
    return type("Run", (SimpleNamespace,), {"__module__": f"{module.__name__}.inner"})(**members)


def mlflow(monkeypatch: pytest.MonkeyPatch, *, fails: str = "") -> tuple[Any, Any, Calls]:
    """Return the module with an open run, the run, and what its client is called with (signatures of MLflow 3.17)."""
    calls = Calls()
    client = SimpleNamespace(
        log_metric=calls.method("log_metric", lambda run_id, key, value, timestamp=None, step=None: ...),
        log_table=calls.method("log_table", lambda run_id, data, artifact_file: ...),
        log_artifact=calls.method("log_artifact", lambda run_id, local_path, artifact_path=None: ..., fails),
        set_tag=calls.method("set_tag", lambda run_id, key, value, synchronous=None: ...),
    )
    module: Any = tracker_module(monkeypatch, "mlflow", MlflowClient=lambda: client)
    run = made_by(module, info=SimpleNamespace(run_id="abc"))
    module.active_run, module.last_active_run = lambda: run, lambda: run
    return module, run, calls


def wandb(monkeypatch: pytest.MonkeyPatch, at: int = 0) -> tuple[Any, Any, Calls]:
    """Return the module, its open run at a step, and what that is called with (signatures of W&B 0.31)."""
    calls = Calls()
    module: Any = tracker_module(
        monkeypatch, "wandb", Table=lambda dataframe: SimpleNamespace(frame=dataframe), Artifact=object
    )
    module.run = made_by(
        module,
        step=at,
        log=calls.method("log", lambda data, step=None, commit=None: ...),
        log_artifact=calls.method("log_artifact", lambda artifact_or_path, name=None, type=None, aliases=None: ...),
        summary=SimpleNamespace(update=calls.method("summary", lambda d: ...)),
    )
    return module, module.run, calls


def tensorboard() -> tuple[Any, Calls]:
    """Return a writer, and what it is called with (signatures of torch 2.13)."""
    calls = Calls()
    writer = SimpleNamespace(
        add_scalar=calls.method("add_scalar", lambda tag, scalar_value, global_step=None, walltime=None: ...),
        add_text=calls.method("add_text", lambda tag, text_string, global_step=None, walltime=None: ...),
    )
    return writer, calls


def aim(monkeypatch: pytest.MonkeyPatch, artifacts_uri: str | None = None) -> tuple[Any, Calls]:
    """Return a run, and what it is called with (signatures of Aim 3.29)."""
    calls = Calls()
    module: Any = tracker_module(monkeypatch, "aim", Text=lambda text: SimpleNamespace(text=text))
    run = made_by(
        module,
        track=calls.method("track", lambda value, name=None, step=None, epoch=None, *, context=None: ...),
        log_artifact=calls.method("log_artifact", lambda path, name=None, *, block=False: ...),
        artifacts_uri=artifacts_uri,
    )
    type(run).__setitem__ = lambda _, key, value: calls.append(("set", {"key": key, "value": value}))
    return run, calls
