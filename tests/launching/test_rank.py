"""What one rank does with its order, in this process: no other rank is started."""

from __future__ import annotations

import json
import linecache
import os
import pickle
import runpy
import signal
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import perfnb
from perfnb.errors import CaptureError
from perfnb.launching import child, rank
from perfnb.launching.job_folder import ORDER, PROGRESS, Meeting
from perfnb.launching.order import Order, pack_cell
from perfnb.launching.rank import _set_up, _Split, _unwrapped, _wrapped, profile_in_group
from perfnb.launching.rank_scaling import _measured, _numbers
from perfnb.profile import profiling
from perfnb.profile.profile import Profile
from perfnb.recording.job import rank_folder
from perfnb.step.cells import BATCH, Clause
from perfnb.step.namespace import names_in
from tests.recordings import ByHand


def step() -> None:
    pass


def test_batches_come_with_the_step_or_as_an_argument() -> None:
    assert _set_up(lambda: step, None) == (step, None)
    assert _set_up(lambda: step, [1]) == (step, [1])
    assert _set_up(lambda: (step, [2]), None) == (step, [2])
    assert _set_up(lambda: (step, None), [1]) == (step, [1])
    with pytest.raises(CaptureError, match="also returned with the step"):
        _set_up(lambda: (step, [2]), [1])


@pytest.mark.parametrize(("returned", "kind"), [((step, 1, 2), "tuple"), (3, "int"), ((3, []), "int")])
def test_a_target_must_return_a_step(returned: Any, kind: str) -> None:
    with pytest.raises(CaptureError, match=f"returned {kind} instead of a step"):
        _set_up(lambda: returned, None)


Pair = namedtuple("Pair", ["x", "label"])


def test_the_split_of_a_batch_keeps_its_containers() -> None:
    batch = Pair(torch.arange(4), [torch.arange(2), "word"])

    [part] = _Split([batch], 1, 2)

    assert isinstance(part, Pair)
    assert part.x.tolist() == [2, 3]
    assert isinstance(part.label, list)
    assert (part.label[0].tolist(), part.label[1]) == ([1], "word")


class Reads(nn.Module):
    """Stands in for DistributedDataParallel, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Reads)


@pytest.mark.usefixtures("parallel")
def test_only_whole_models_that_learn_are_wrapped() -> None:
    model, frozen, other = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)
    done = Reads(nn.Linear(2, 2))

    found = _wrapped({"a": model, "part": model[0], "frozen": frozen, "b": other, "done": done, "x": 1})

    assert {key: value.module for key, value in found.items()} == {id(model): model, id(other): other}
    assert all(isinstance(value, Reads) for value in found.values())
    assert _unwrapped({"done": done, "a": model, "x": 1}) == {id(done): done.module}


@pytest.mark.usefixtures("parallel")
def test_a_model_with_a_single_trainable_weight_is_wrapped() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert list(_wrapped({"model": model})) == [id(model)]
    model.weight.requires_grad_(False)
    with pytest.raises(CaptureError, match="ddp finds no model"):
        _wrapped({"model": model})


@pytest.fixture
def own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))


def ordered(folder: Path, **values: Any) -> Order:
    order = Order(threads=torch.get_num_threads(), **values)
    (folder / ORDER).write_bytes(pickle.dumps(order))
    return order


@pytest.mark.usefixtures("own_arguments")
@pytest.mark.parametrize("code", [None, 0])
def test_a_script_runs_under_perfnb_run_and_may_end_well(
    code: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []

    def run_module(name: str, **options: Any) -> None:
        ran.append((name, options["run_name"], list(sys.argv)))
        raise SystemExit(code)

    monkeypatch.setattr(runpy, "run_module", run_module)
    ordered(tmp_path, kind="script", program=("train.py", "--lr", "3"), at=7)

    rank.run(tmp_path, 0)

    words = ["perfnb", "run", "--at", "7", "--save", str(tmp_path / "profiles"), "train.py", "--lr", "3"]
    assert ran == [("perfnb", "__main__", words)]


@pytest.mark.usefixtures("own_arguments")
@pytest.mark.parametrize("code", [1, "a message"])
def test_a_script_that_fails_is_a_failure(code: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_module(*_: Any, **__: Any) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(runpy, "run_module", run_module)
    ordered(tmp_path, kind="script", program=("train.py",))

    with pytest.raises(SystemExit):
        rank.run(tmp_path, 0)


@pytest.mark.usefixtures("own_arguments")
@pytest.mark.parametrize(
    ("visible", "own", "seen"),
    [(None, 1, "1"), ("", 1, "1"), ("4,6", 1, "6"), ("4,6", 0, "4"), ("4", 1, "1")],
)
def test_a_cell_sees_the_gpu_of_its_rank_alone(
    visible: str | None, own: int, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "" if visible is None else visible)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    told = []
    monkeypatch.setattr(rank, "profile_in_group", lambda *given: told.append(given[2:4]))
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: told.append("ended"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: pytest.fail("a cell has one GPU"))
    ordered(tmp_path, kind="cell", gpus=2)

    rank.run(tmp_path, own)

    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert told == [(own, 2), "ended"]


@pytest.mark.usefixtures("own_arguments")
def test_a_function_uses_the_gpu_of_its_rank_and_tracebacks_show_the_lines_of_cells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(linecache, "cache", {})
    told: list[Any] = []
    monkeypatch.setattr(rank, "profile_in_group", lambda *given: told.extend([given[2:4], given[5]()]))
    monkeypatch.setattr(os, "_exit", lambda code: f"exit {code}")
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: told.append("ended"))
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    ordered(tmp_path, kind="function", gpus=2, lines={"<cell>": ["1\n", "22"]})

    rank.run(tmp_path, 1)

    assert told == [1, (1, 2), "exit 1", "ended"]  # a rank whose step fails ends at once
    assert linecache.cache == {"<cell>": (4, None, ["1\n", "22"], "<cell>")}
    assert linecache.getline("<cell>", 2) == "22"


class Group:
    """A process group of ranks that are not there, and a profiler that only calls the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined: dict[str, Any] = {}
        self.given: dict[str, Any] = {}
        self.asked: list[Any] = []
        store = SimpleNamespace(set_timeout=self.asked.append)
        monkeypatch.setattr(torch.distributed, "FileStore", lambda path, ranks: store, raising=False)
        monkeypatch.setattr(torch.distributed, "init_process_group", self.join)
        monkeypatch.setattr(profiling, "profile_call", self.profile)
        monkeypatch.setattr(profiling, "run_profile", self.profile)

    def join(self, backend: str, **options: Any) -> None:
        self.joined = {"backend": backend, **options}

    def profile(self, step: Callable[..., Any], batches: Any, **options: Any) -> Profile:
        self.given = {**options, "batches": batches}
        step = options.get("guard", lambda step: step)(step)
        batches = batches() if callable(batches) else batches
        for batch in [()] if batches is None else [(batch,) for batch in batches]:
            step(*batch)
        options["line"].update("timed", 1, 2, "")
        return Profile(ByHand().step(0, 1000).recording())

    def run(self, folder: Path, order: Order, own: int = 1, ranks: int = 2, failed: Any = None) -> None:
        class Asked(Meeting):
            def get(meeting, key: str) -> str:
                self.asked.append(key)
                return super().get(key)

        meeting = Asked(folder)
        for other in range(ranks):
            if other != own:
                meeting.set(f"here_{other}", "")
        profile_in_group(order, folder, own, ranks, meeting, failed or (lambda: None), nullcontext())


def order_of(target: Any, batches: Any = None, **values: Any) -> Order:
    return Order("function", cloudpickle.dumps((target, batches)), **values)


RAN: list[Any] = []


@pytest.fixture(autouse=True)
def _ran() -> Iterator[None]:
    RAN.clear()
    yield
    RAN.clear()


def remembering() -> Callable[[Any], None]:
    return lambda batch: RAN.append(batch.tolist())


def naming(wrapped: Callable[[nn.Module], nn.Module] = lambda model: model) -> Callable[[], None]:
    model = wrapped(nn.Linear(1, 1))
    return lambda: RAN.append(type(model).__name__)


def naming_wrapped() -> Callable[[], None]:
    return naming(nn.parallel.DistributedDataParallel)


@pytest.mark.parametrize(("split", "parts"), [(True, [[2, 3]]), (False, [[0, 1, 2, 3]])])
def test_a_rank_runs_its_part_and_saves_its_profile(
    split: bool, parts: list[list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group = Group(monkeypatch)
    order = order_of(remembering, [torch.arange(4)], split=split, name="mine")

    group.run(tmp_path, order)

    assert parts == RAN
    assert group.joined["backend"] == "gloo"
    assert (group.joined["rank"], group.joined["world_size"]) == (1, 2)
    assert group.asked == ["here_0", "here_1", group.joined["timeout"]]
    assert group.given["name"] == "mine"
    saved: Any = perfnb.load(tmp_path / "profiles" / rank_folder(1))
    assert saved.meta["job"] == {"rank": 1, "world_size": 2, "backend": "gloo"}
    assert not (tmp_path / PROGRESS).exists()  # only the first rank tells


def test_the_first_rank_tells_its_progress_and_has_the_first_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Group(monkeypatch).run(tmp_path, order_of(remembering, [torch.arange(4)], split=True), own=0)

    assert RAN == [[0, 1]]
    assert json.loads((tmp_path / PROGRESS).read_text()) == ["timed", 1, 2, ""]


def test_a_step_that_fails_is_reported_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = []

    def broken() -> Any:
        def step() -> None:
            raise ValueError("no data")

        return step

    with pytest.raises(ValueError, match="no data"):
        Group(monkeypatch).run(tmp_path, order_of(broken), failed=lambda: ended.append("now"))

    assert ended == ["now"]
    facts = json.loads((tmp_path / "failed_1").read_text())
    assert (facts["rank"], facts["kind"], facts["message"]) == (1, "ValueError", "no data")
    assert isinstance(pickle.loads((tmp_path / "raised_1").read_bytes()), ValueError)


def test_a_cell_runs_with_its_variables_and_names_the_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = Group(monkeypatch)
    before = dict(vars(sys.modules["__main__"]))
    variables: dict[str, Any] = {"__name__": "__main__", "seen": [], "net": nn.Linear(1, 1), "_hidden": 5}
    body = compile("seen.append(_hidden)", "<cell>", "exec")
    payload = pack_cell(body, None, variables, [*names_in(body), "net"], ["net"])
    try:
        group.run(tmp_path, Order("cell", payload))
        assert vars(sys.modules["__main__"])["seen"] == [5]
    finally:
        main = vars(sys.modules["__main__"])
        for name in main.keys() - before.keys():
            del main[name]

    space = group.given["namespace"]
    assert space["seen"] == [5]
    assert variables["seen"] == []
    assert group.given["models"] == [space["net"]]
    assert group.given["name"] == "step"
    assert not [name for name in space if name.startswith("__")]


@pytest.mark.parametrize(("split", "part"), [(True, [2, 3]), (False, [0, 1, 2, 3])])
def test_a_cell_gets_its_part_of_each_batch(
    split: bool, part: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group, main = Group(monkeypatch), sys.modules["__main__"]
    body, assign = compile("seen.append(x.tolist())", "<cell>", "exec"), compile(f"x = {BATCH}", "<cell>", "exec")
    variables: dict[str, Any] = {"__name__": "__main__", "seen": [], "data": [torch.arange(4)]}
    for name in ("seen", "data"):
        monkeypatch.setattr(main, name, None, raising=False)
    clause = Clause(assign, compile("data", "<cell>", "eval"), "for x in data")

    group.run(tmp_path, Order("cell", pack_cell(body, clause, variables, ["seen", "data"], None), split=split))

    assert group.given["namespace"]["seen"] == [part]


@pytest.mark.usefixtures("parallel")
@pytest.mark.parametrize(
    ("target", "options", "kind"),
    [
        (naming, {"ddp": True}, "Reads"),
        (naming, {}, "Linear"),
        (naming_wrapped, {"plain": True}, "Linear"),  # for a comparison
        (naming_wrapped, {}, "Reads"),
    ],
)
def test_the_model_of_a_function_is_wrapped_or_unwrapped_if_asked(
    target: Any, options: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Group(monkeypatch).run(tmp_path, order_of(target, **options))

    assert [kind] == RAN


@pytest.mark.usefixtures("parallel")
def test_the_model_of_a_cell_is_wrapped_if_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group, main = Group(monkeypatch), sys.modules["__main__"]
    model = nn.Linear(1, 1)
    variables: dict[str, Any] = {"__name__": "__main__", "seen": [], "net": model, "_other": nn.Linear(1, 1)}
    body = compile("seen.append(type(net).__name__ + type(_other).__name__)", "<cell>", "exec")
    for name in ("seen", "net", "_other"):
        monkeypatch.setattr(main, name, None, raising=False)

    group.run(tmp_path, Order("cell", pack_cell(body, None, variables, names_in(body), None), ddp=True))

    assert group.given["namespace"]["seen"] == ["ReadsLinear"]  # names with an underscore are IPython's
    assert group.given["models"] is None


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The environment of a rank whose process is this one."""
    monkeypatch.setenv(child.FOLDER, str(tmp_path))
    monkeypatch.setenv(child.STARTED_BY, str(os.getppid()))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setattr(child, "set_process_option", lambda *_: None)
    before = signal.getsignal(signal.SIGINT)
    yield tmp_path
    signal.signal(signal.SIGINT, before)


def test_a_rank_tells_how_much_it_has_printed(
    started: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(folder: Path, own: int) -> None:
        assert (folder, own) == (started, 3)
        print("hello")
        os.write(2, b"an error that is longer\n")

    monkeypatch.setattr(rank, "run", run)

    child.main()

    assert (started / "done_3").read_text() == str(len("hello\n"))
    assert not (started / "failed_3").exists()


def test_a_rank_that_fails_tells_why_and_ends(started: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any) -> None:
        raise ValueError("broken")

    def end(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(rank, "run", run)
    monkeypatch.setattr(os, "_exit", end)

    with pytest.raises(SystemExit) as ended:
        child.main()

    assert ended.value.code == 1
    assert json.loads((started / "failed_3").read_text())["message"] == "broken"
    assert not (started / "done_3").exists()


def test_only_the_first_failure_of_a_rank_is_kept(tmp_path: Path) -> None:
    child.tell_failure(tmp_path, 0, ValueError("first"))
    child.tell_failure(tmp_path, 0, ValueError("second"))
    child.tell_failure(tmp_path, 1, ValueError("other"))
    child.tell_failure(tmp_path / "gone", 1, ValueError("nobody is left"))

    told = [json.loads((tmp_path / f"failed_{number}").read_text())["message"] for number in (0, 1)]
    assert told == ["first", "other"]
    assert str(pickle.loads((tmp_path / "raised_0").read_bytes())) == "first"


def traced(function: Callable[[], Any], file: str) -> Any:
    """Return the traceback of an error that code of a file caught."""
    names: dict[str, Any] = {}
    lines = (
        "def first(f):\n    try:\n        f()\n    except ValueError as error:\n        return error.__traceback__\n"
    )
    exec(compile(lines, file, "exec"), names)
    return names["first"](function)


def breaks() -> None:
    raise ValueError


@pytest.mark.parametrize(
    ("file", "first"),
    [
        (str(Path(child.__file__)), "breaks"),
        ("<string>", "breaks"),
        ("<frozen runpy>", "breaks"),
        ("/lib/runpy.py", "breaks"),
        ("/somewhere/train.py", "first"),
        ("/somewhere/my_runpy.py", "first"),
    ],
)
def test_a_traceback_starts_at_the_first_line_of_the_user(file: str, first: str) -> None:
    assert child._users(traced(breaks, file)).tb_frame.f_code.co_name == first


def test_a_traceback_without_a_line_of_the_user_is_whole() -> None:
    names: dict[str, Any] = {}
    exec(compile("def inside():\n    raise ValueError\n", "<string>", "exec"), names)
    trace = traced(names["inside"], "<string>")

    assert child._users(trace) is trace


class Measured(list[Any]):
    """The profiles of ranks, as far as a study of scaling reads them."""

    times: pd.DataFrame
    _buckets = None


def measured(steps: list[list[float]], shares: list[dict[str, float]], waiting: list[list[float]]) -> Measured:
    found = Measured()
    for own, parts in zip(steps, shares, strict=True):
        table = pd.DataFrame({"pass": ["warmup"] + ["timed"] * len(own), "wall_ms": [999.0, *own]})
        found.append(SimpleNamespace(steps=table, phases=pd.DataFrame({"share": parts})))
    found.times = pd.DataFrame(
        [
            {"rank": number, "wall_ms": 100.0, "waiting_ms": value}
            for number, values in enumerate(waiting)
            for value in values
        ]
    )
    return found


def test_a_step_of_a_job_is_that_of_its_slowest_rank_and_its_parts_add_up() -> None:
    shares = [{"data": 0.1, "communication": 0.4}, {"communication": 0.2, "forward": 0.8}]

    run = _measured(measured([[10.0, 20.0], [12.0, 15.0]], shares, [[2.0, 4.0], [20.0, 22.0]]))  # type: ignore[arg-type]

    assert run.steps_ms == [12.0, 20.0]
    assert run.shares == pytest.approx({"input": 0.05, "communication": 0.3 - 0.12, "imbalance": 0.12, "compute": 0.65})
    assert run.buckets == ""


def test_no_more_is_waited_than_is_exposed() -> None:
    run = _measured(measured([[1.0]] * 2, [{"communication": 0.1}] * 2, [[30.0], [0.0]]))  # type: ignore[arg-type]

    assert run.shares == pytest.approx({"input": 0.0, "communication": 0.0, "imbalance": 0.1, "compute": 0.9})


@pytest.mark.parametrize(
    ("ranks", "exposed", "waiting", "imbalance"),
    [
        (1, 0.2, [[np.nan]], 0.0),  # there is nobody to wait for
        (2, 0.0, [[np.nan], [3.0]], 0.0),
        (2, 0.2, [[np.nan], [3.0]], None),
    ],
)
def test_waiting_is_unknown_only_where_there_is_some(
    ranks: int, exposed: float, waiting: list[list[float]], imbalance: float | None
) -> None:
    run = _measured(measured([[1.0]] * ranks, [{"communication": exposed}] * ranks, waiting))  # type: ignore[arg-type]

    assert run.shares["imbalance"] == imbalance
    assert run.shares["communication"] == pytest.approx(exposed)
    assert run.shares["compute"] == pytest.approx(1 - exposed)


def test_one_rank_is_always_measured_and_each_number_once() -> None:
    assert _numbers((4, 2, 2)) == [1, 2, 4]
    assert _numbers([2]) == [1, 2]
    assert _numbers(range(1, 3)) == [1, 2]
    for wrong in (2, "2"):
        with pytest.raises(TypeError, match="ranks must be a sequence"):
            _numbers(wrong)  # type: ignore[arg-type]
    for wrong in ((), (1, 1)):
        with pytest.raises(ValueError, match="at least one number above 1"):
            _numbers(wrong)
