"""What travels to the ranks, and what is said of the rest."""

from __future__ import annotations

import linecache
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.errors import CaptureError, PerfnbError
from perfnb.launching import profile_ranks
from perfnb.launching.order import Cell, Order, lines_of, pack_cell, pack_function
from perfnb.launching.profile_ranks import _silence, order_for, run_ranks
from perfnb.launching.rank import _Split, _wrapped
from perfnb.launching.rank_scaling import _numbers
from perfnb.profile.profile import Profile
from perfnb.recording.job import rank_folder
from perfnb.step.cells import step_of
from perfnb.step.namespace import names_in
from tests.recordings import ByHand


def notebook(code: str) -> dict[str, Any]:
    """Return the variables of a notebook after a cell."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(code, variables)
    return variables


def test_a_cell_travels_with_the_variables_that_it_names() -> None:
    variables = notebook("calls = []\nfactor = 3\nunused = 1\ndef work(x):\n    calls.append(factor * x)\n")
    body = compile("work(2)\nwork(factor)", "<cell>", "exec")

    sent: Cell = pickle.loads(pack_cell(body, None, variables, names_in(body), None))
    namespace = sent.anchor.__globals__
    namespace.update(sent.variables)
    step_of(sent.body, namespace, None)()

    assert set(sent.variables) == {"work", "factor"}
    assert namespace["calls"] == [6, 9]
    assert variables["calls"] == []


def test_functions_and_the_cell_share_their_variables() -> None:
    variables = notebook("count = 0\ndef more():\n    global count\n    count += 1\n")
    body = compile("more()\ncount += 1", "<cell>", "exec")

    sent: Cell = pickle.loads(pack_cell(body, None, variables, names_in(body), None))
    namespace = sent.anchor.__globals__
    namespace.update(sent.variables)
    step_of(sent.body, namespace, None)()

    assert namespace["count"] == 2


def test_a_model_and_what_holds_its_parameters_stay_together() -> None:
    model = nn.Linear(2, 1)
    variables = {"model": model, "updated": list(model.parameters()), "__name__": "__main__"}

    sent: Cell = pickle.loads(pack_cell(compile("0", "<cell>", "exec"), None, variables, list(variables)[:2], None))

    assert sent.variables["updated"][0] is sent.variables["model"].weight


def test_what_cannot_travel_is_named() -> None:
    variables = notebook("import threading\nlock = threading.Lock()\nx = 1\ndef work():\n    lock.acquire()\n")
    for code in ("with lock: x", "work()"):
        body = compile(code, "<cell>", "exec")
        with pytest.raises(CaptureError, match=r"^lock cannot be sent to the ranks"):
            pack_cell(body, None, variables, names_in(body), None)
    gate = threading.Lock()
    with pytest.raises(CaptureError, match=r"^gate cannot be sent to the ranks"):
        pack_function(lambda: gate.acquire, None)


def test_ipythons_syntax_is_refused() -> None:
    with pytest.raises(CaptureError, match="IPython's own syntax"):
        pack_cell(compile("0", "<cell>", "exec"), None, {}, ["get_ipython"], None)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_parts_of_a_batch_are_the_batch(ranks: int) -> None:
    x, y = torch.arange(14).reshape(7, 2), torch.arange(7)
    batch = {"x": x, "inner": (y, [y]), "scale": 2.0, "scalar": torch.tensor(3)}

    parts = [next(iter(_Split([batch], rank, ranks))) for rank in range(ranks)]

    assert torch.equal(torch.cat([part["x"] for part in parts]), x)
    assert torch.equal(torch.cat([part["inner"][1][0] for part in parts]), y)
    assert {type(part["inner"]) for part in parts} == {tuple}
    assert {part["scale"] for part in parts} == {2.0}


def test_a_batch_too_small_to_split() -> None:
    assert [part.tolist() for part in _Split(lambda: iter([torch.arange(2)]), 1, 2)] == [[1]]
    with pytest.raises(CaptureError, match="A batch of 1 cannot be split among 2 ranks"):
        next(iter(_Split(lambda: [torch.ones(1, 3)], 0, 2)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"target": 3}, TypeError, "target must be a function"),
        ({"target": "nowhere.py"}, CaptureError, "nowhere.py does not exist"),
        ({"threads": 0}, ValueError, "threads must be"),
        ({"backend": "smoke"}, ValueError, "backend 'smoke' is unknown: use gloo"),
        ({"backend": 3}, TypeError, "backend must be a string"),
        ({"ddp": "yes"}, TypeError, "ddp must be"),
        ({"args": ["--x"]}, TypeError, "args only apply to scripts"),
        ({"steps": 0}, ValueError, "steps must be"),
        ({"env": {"A": 1}}, TypeError, "env must be a mapping of strings to strings"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    target = options.pop("target", FunctionType((lambda: None).__code__, {}))

    with pytest.raises(error, match=message):
        perfnb.profile_ranks(target, **options)


@pytest.mark.parametrize("option", [{"batches": [1]}, {"ddp": True}, {"split": True}])
def test_a_script_makes_its_own(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(option))} only applies to functions"):
        perfnb.profile_ranks(__file__, **option)


def test_more_ranks_than_a_machine_can_start_are_refused() -> None:
    for number in (10**6, 5000):
        with pytest.raises(ValueError, match=r"ranks must be at most [\d,]+ on this machine"):
            perfnb.profile_ranks(lambda: None, number)
    with pytest.raises(ValueError, match=r"ranks must be at most"):
        perfnb.rank_scaling(lambda: None, (1, 10**6))


@pytest.mark.parametrize(("cores", "most", "said"), [(0.5, 64, "1 core"), (16.9, 64, "16 cores"), (17.0, 68, "17 c")])
def test_64_ranks_or_4_per_core_can_start(cores: float, most: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.step.environment.usable_cpus", lambda: cores)
    monkeypatch.setattr("perfnb.launching.rank.gpu_count", lambda: 0)
    orders = [order_for("function", ranks, {}) for ranks in (most, 5)]
    assert [order.threads for order in orders] == [1, max(1, int(cores / 5))]
    said = f"ranks must be at most {most} on this machine with {said}.*not {most + 1}"
    for start in (lambda ranks: perfnb.profile_ranks(lambda: None, ranks), lambda ranks: _numbers((1, ranks))):
        with pytest.raises(ValueError, match=said):
            start(most + 1)


def test_ddp_for_a_model_that_has_it_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Parallel(nn.Linear):
        pass

    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Parallel)

    with pytest.raises(CaptureError, match=r"already wrapped in DistributedDataParallel\. Omit ddp"):
        _wrapped({"model": Parallel(2, 2)})
    with pytest.raises(CaptureError, match=r"ddp finds no model"):
        _wrapped({"x": 1})


def test_ranks_that_did_not_communicate_get_the_advice_that_fits() -> None:
    assert "--ddp" in _silence(ddp=False)
    assert "backward" in _silence(ddp=True)
    assert "wraps it" not in _silence(ddp=True)


def test_only_code_without_a_file_travels_with_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "train.py"
    file.write_text("1")
    for name, lines in (("<cell>", ["x\n"]), (str(file), ["1"])):
        monkeypatch.setitem(linecache.cache, name, (len(lines[0]), None, lines, name))
    codes = [compile("0", name, "exec") for name in ("<cell>", str(file), "<unknown>")]
    assert lines_of(*codes) == {"<cell>": ["x\n"]}


class Ran:
    """A job that has run without processes, whose ranks saved something."""

    calls: list[Any]
    saves: Callable[[Path], None]

    def __init__(self, folder: Path, order: Order, ranks: int, env: Any, note: str, executor: Any = None) -> None:
        self._folder = folder
        self.calls.append((order, ranks, env, note, executor))

    def follow(self, progress: Any, show: Callable[[str], None]) -> None:
        show("a line\n")
        (self._folder / "profiles").mkdir()
        type(self).saves(self._folder / "profiles")

    def end(self) -> None:
        self.calls.append("ended")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(Ran, "calls", [], raising=False)
    monkeypatch.setattr(Ran, "saves", staticmethod(lambda folder: None), raising=False)
    monkeypatch.setattr(profile_ranks, "Job", Ran)
    monkeypatch.setattr(profile_ranks, "EngineJob", Ran)
    monkeypatch.setattr("perfnb.launching.rank.gpu_count", lambda: 0)
    return Ran.calls


def saved(*names: str) -> Any:
    """Return a function that saves profiles with the given names in a folder."""

    def save(folder: Path) -> None:
        for rank, name in enumerate(names):
            job = {"rank": rank, "world_size": len(names), "backend": "gloo"}
            Profile(ByHand().step(0, 1000).recording(rank=rank, job=job)).save(folder / name)

    return staticmethod(save)


def test_the_profiles_of_a_function_are_those_of_its_ranks(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Ran, "saves", saved(rank_folder(0), rank_folder(1)))
    ranks = perfnb.profile_ranks(FunctionType((lambda: None).__code__, {}), threads=1, steps=3, name="job", ddp=True)

    assert len(ranks) == 2
    (order, number, env, note, executor), ended = ran
    assert (order.kind, order.name, order.plan["steps"], order.ddp) == ("function", "job", 3, True)
    assert (number, env, note, executor, ended) == (2, {}, "1 thread each", None, "ended")
    assert capsys.readouterr().out.replace("\n", " ").startswith("a line perfnb: the ranks did not communicate.")

    class Client:
        ids = (1, 2)

        def __getitem__(self, number: int) -> Any: ...

    client, own = Client(), {"A": "b"}
    run_ranks(order, 2, own, executor=client, note="mine", show=False, quiet=True)
    assert ran[2][1:] == (2, own, "mine", client)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Ran, "saves", saved(rank_folder(0)))
    run_ranks(order, 1, quiet=True)  # one rank has nobody to communicate with
    assert capsys.readouterr().out == "a line\n"


def test_a_script_is_called_with_its_arguments_and_its_last_profile_counts(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    monkeypatch.setattr(Ran, "saves", saved("step_000005", "step_000030"))
    monkeypatch.setattr(profile_ranks, "load", lambda path, load=perfnb.load: loaded.append(path.name) or load(path))
    loaded: list[str] = []

    assert len(perfnb.profile_ranks(str(script), 1, args=["--lr", 3], at=5)) == 1
    order = ran[0][0]
    assert (order.kind, order.program, order.at) == ("script", (str(script.resolve()), "--lr", "3"), 5)
    assert loaded == ["step_000030"]

    monkeypatch.setattr(Ran, "saves", staticmethod(lambda folder: (folder / "step_notes").touch()))
    with pytest.raises(CaptureError, match=r"it skips the first 5 steps\. Pass a smaller"):
        perfnb.profile_ranks(script, 1, at=5)
    monkeypatch.setattr(Ran, "saves", staticmethod(lambda folder: perfnb.Timing((1.0,)).save(folder / "step_1")))
    with pytest.raises(PerfnbError, match="The ranks saved a Timing instead of profiles"):
        perfnb.profile_ranks(script, 1)
    assert (ran[-2][0].at, ran[-1]) == (100, "ended")
    with pytest.raises(ValueError, match="at must be"):
        perfnb.profile_ranks(script, 1, at=-1)


@pytest.mark.parametrize(("ranks", "enough"), [(1, True), (2, True), (3, False)])
def test_nccl_is_used_from_as_many_gpus_as_ranks_on(ranks: int, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.launching.rank.gpu_count", lambda: 2)
    assert order_for("function", ranks, {}, "job").backend == ("cpu:gloo,cuda:nccl" if enough else "gloo")
    if enough:
        order = order_for("function", ranks, {}, "job", backend="nccl")
        assert (order.backend, order.gpus) == ("nccl", 2)
    else:
        with pytest.raises(CaptureError, match="each of the 3 ranks needs its own GPU, but this machine has 2 GPUs"):
            order_for("function", ranks, {}, "job", backend="nccl")
        assert order_for("function", ranks, {}, "job").gpus == 0
        monkeypatch.setattr("perfnb.launching.rank.gpu_count", lambda: 0)
        with pytest.raises(CaptureError, match="each of the 3 ranks needs its own GPU, but this machine has no GPU"):
            order_for("function", ranks, {}, "job", backend="nccl")
