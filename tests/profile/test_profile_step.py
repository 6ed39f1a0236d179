"""The public face: what `profile_step` takes, what a `Profile` tells of itself, and what it refuses."""

from __future__ import annotations

import gc
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import perfnb
from perfnb.profile import profiling
from perfnb.profile.analysis import Analysis
from perfnb.recording.provenance import written
from perfnb.step import compiler
from tests.recording.test_compiled_layers import SHARED
from tests.recordings import ByHand
from tests.step.models import three_linears, training_step
from tests.tracebacks import PACKAGE

pytestmark = pytest.mark.usefixtures("nothing_left")


def profile_of(step: Any, batches: Any = None, **options: Any) -> perfnb.Profile:
    return perfnb.profile_step(step, batches, **{"warmup": 1, "steps": 6, "traced": 2, **options})


def test_the_signature_is_the_contract() -> None:
    parameters = inspect.signature(perfnb.profile_step).parameters

    counts = {"warmup": None, "steps": None, "traced": 3, "budget_s": 30.0}
    choices = {"memory": True, "flops": True, "stacks": "auto", "watch": False, "recompile": False}
    defaults = {"batches": None, "model": None, **counts, **choices, "name": None}
    assert {name: parameter.default for name, parameter in parameters.items() if name != "step"} == defaults
    assert [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY] == list(defaults)[1:]


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_a_profile_tells_the_step_time_how_often_the_step_ran_and_on_what() -> None:
    p = profile_of(training_step(three_linears(), torch.ones(4, 8)), name="my step")

    text = str(p)
    assert "my step" in text.splitlines()[0]
    assert "ran 13 times: 1 warm-up, 6 timed, 2 lead-in, 2 traced, 2 counted" in text
    assert "2 threads" in text
    timed = p.steps.loc[p.steps["pass"] == "timed", "wall_ms"].to_numpy()
    assert p.timing.samples_ms == tuple(timed)
    assert p.timing.ci_ms == (timed.min(), timed.max())
    assert repr(p) == f"<perfnb.Profile 'my step': {p.timing.median_ms:.3g} ms per step, 6 steps timed>"
    assert p.meta["name"] == "my step"
    assert p.meta["environment"]["torch"] == torch.__version__


def test_the_name_is_the_steps_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "run_profile", lambda step, batches, **options: options["name"])

    def my_step() -> None: ...

    class Step:
        def __call__(self) -> None: ...

    assert [profile_of(my_step), profile_of(Step()), profile_of(my_step, name="mine")] == ["my_step", "step", "mine"]


@pytest.mark.slow
def test_names_that_are_not_those_of_variables_are_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "run_profile", lambda step, batches, **options: options["labels"])
    net, head = nn.Tanh(), nn.Tanh()
    labels: Any = perfnb.profile_step(lambda: head(net), model={"net": net, "top": head})
    assert labels == ["top"]


def test_the_step_time_is_measured_without_hooks_and_profiler() -> None:
    """The timed pass is bare: only warm-up before it, and nothing installed while it runs."""
    hooks: list[int] = []
    profiling: list[bool] = []
    model = three_linears()

    def step() -> None:
        hooks.append(len(torch.nn.modules.module._global_forward_hooks))
        profiling.append(torch.autograd._profiler_enabled())
        model(torch.ones(4, 8))

    p = profile_of(step)

    observed = (p.steps["pass"].isin(["lead_in", "traced", "counted"])).tolist()
    assert profiling == observed
    assert [bool(count) for count in hooks] == observed


@pytest.mark.slow
def test_what_the_step_does_is_the_same_under_observation() -> None:
    """Gradients, outputs and random numbers are those of the same steps without perfnb."""

    def trained(run: Callable[[Callable[[], object]], object]) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 8))
        run(training_step(model, torch.ones(4, 8)))
        return [*model.parameters(), *(parameter.grad for parameter in model.parameters())]

    ran = 0

    def profiled(step: Callable[[], object]) -> None:
        nonlocal ran
        ran = len(profile_of(step).steps)

    watched = trained(profiled)
    assert ran >= 13  # on a busy machine the profile may sample further steps
    bare = trained(lambda step: [step() for _ in range(ran)])
    assert all(torch.equal(*pair) for pair in zip(bare, watched, strict=True))


@pytest.mark.slow
def test_stacks_add_python_calls_to_the_events() -> None:
    p = profile_of(training_step(three_linears(), torch.ones(4, 8)), stacks=True, steps=1)

    assert "python_function" in set(p.events["category"])
    assert p.layers["calls"].dropna().tolist() == [1, 1, 1, 1]
    total = p.phases.loc[["forward", "backward"], "ms"].sum()
    assert p.layers["self_ms"].sum() == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("step", [None, 3, "step"])
def test_a_step_that_cannot_be_called_is_a_type_error(step: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^step must be a function that runs one step, not \w+: pass step, not step\(\)\.$"
    ):
        profile_of(step)


def test_a_model_that_is_none_is_refused_before_the_step_runs() -> None:
    with pytest.raises(TypeError, match="model must be a torch module"):
        profile_of(lambda: pytest.fail("ran"), model="net")


def test_the_traceback_of_the_users_error_hides_perfnbs_frames() -> None:
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        profile_of(step)

    shown = [entry.name for entry in caught.traceback if not entry.frame.f_locals.get("__tracebackhide__")]
    assert shown[-1] == "step"
    inside = [entry for entry in caught.traceback if Path(entry.path).resolve().is_relative_to(PACKAGE)]
    assert [entry.name for entry in inside] == []


@pytest.mark.slow
def test_a_script_writes_nothing_of_its_own(tmp_path: Path) -> None:
    """No log line, progress bar or warning, and an exit code of 0, with warnings as errors."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, perfnb\n"
        "model = torch.nn.Linear(4, 4)\n"
        "p = perfnb.profile_step(lambda: model(torch.ones(2, 4)).sum().backward(), warmup=1, steps=2, traced=1)\n"
        "print(list(p.layers.index)[0], len(p.steps))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, env=environment, timeout=120
    )

    assert (done.returncode, done.stdout) == (0, "model 8\n")
    assert done.stderr == ""


def test_importing_perfnb_alone_lists_its_public_names() -> None:
    assert set(perfnb.__all__) <= set(dir(perfnb))
    with pytest.raises(AttributeError, match="has no attribute 'profil'"):
        _ = perfnb.profil  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_step_of_nothing_has_one_traced_time_and_no_share_above_the_whole() -> None:
    p = perfnb.profile_step(lambda: gc.collect(0), steps=20, traced=3)

    traced = p.steps.loc[p.steps["pass"] == "traced", "wall_ms"]
    assert traced.mean() == pytest.approx(p.phases["ms"].sum())
    assert p._summary.slowdown == pytest.approx(p.phases["ms"].sum() / p.timing.median_ms)
    assert 0 < p.timing.noise["gc_share"] <= 1
    shares = [float(share.replace(",", "")) for share in re.findall(r"([\d.,]+) %", str(p))]
    assert shares
    assert max(shares) <= 100


def test_an_error_of_a_model_without_data_has_a_note_and_others_have_none() -> None:
    net, x = nn.Linear(2, 2, device="meta"), torch.ones(1, 2)

    def without_data() -> None:
        net.weight[0, 0].item()  # raises an error

    def with_data() -> None:
        raise RuntimeError(f"no meta tensor in {x.shape}")

    with pytest.raises(RuntimeError) as told:
        profile_of(without_data)
    (note,) = told.value.__notes__
    assert note.startswith("perfnb: net is on the meta device")
    with pytest.raises(RuntimeError, match="no meta tensor") as plain:
        profile_of(with_data)
    assert not getattr(plain.value, "__notes__", [])


@pytest.mark.parametrize("notebook", [True, False])
def test_a_step_that_runs_out_of_memory_has_an_incomplete_profile(
    notebook: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[perfnb.Profile] = []
    monkeypatch.setattr(profiling, "in_notebook", lambda: notebook)
    monkeypatch.setattr(perfnb.Profile, "_ipython_display_", lambda self: shown.append(self))
    model, calls = nn.Linear(2, 2), [0]

    def step() -> None:
        calls[0] += 1
        model(torch.ones(1, 2))
        if calls[0] > 1:
            raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError) as failed:
        perfnb.profile_step(step, warmup=1, steps=1, traced=1, flops=False, stacks=False)
    note = failed.value.__notes__[-1]
    if notebook:
        assert note == "perfnb: the incomplete profile up to here is shown above."
        assert [p.meta["failed_in"] for p in shown] == ["timed"]
    else:
        assert note.startswith("perfnb: the incomplete profile up to here:\n\nperfnb · profile")
        assert shown == []


@pytest.mark.parametrize(
    ("options", "ranks", "share", "sampler", "worth", "made"),
    [
        ({"stacks": "auto"}, 1, 0.15, None, False, ["recording"]),
        ({"stacks": "auto"}, 1, 0.151, "sampler", True, ["recording", "later"]),
        ({"stacks": "auto", "watch": True}, 1, 0.15, None, False, ["recording", "later"]),
        ({"stacks": "auto"}, 2, 0.9, None, None, ["recording"]),  # the other ranks would wait
        ({"stacks": True, "watch": True}, 1, 0.9, "sampler", None, ["recording"]),
        ({"stacks": False}, 1, 0.9, None, None, ["recording"]),
    ],
)
def test_code_is_sampled_on_request_or_if_the_hosts_share_is_large_and_no_rank_waits(
    options: Any, ranks: int, share: float, sampler: Any, worth: Any, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, found, calls = SimpleNamespace(sampler=sampler, failure=None), list[Any](), list[str]()

    def capture_step(*_: Any, stacks: bool, worth_sampling: Any, **__: Any) -> Any:
        found.extend([stacks, None if worth_sampling is None else worth_sampling(capture)])
        return capture

    def made_by(word: str) -> Callable[..., Any]:
        return lambda *_: calls.append(word) or ByHand().step(0, 9).recording()

    monkeypatch.setattr("perfnb.step.pass_order.capture_step", capture_step)
    for name, word in (("recording_of", "recording"), ("with_later", "later")):
        monkeypatch.setattr(f"perfnb.step.to_recording.{name}", made_by(word))
    monkeypatch.setattr("perfnb.step.environment.place_in_job", lambda: {"world_size": ranks} if ranks > 1 else None)
    monkeypatch.setattr("perfnb.telemetry.watcher.Watcher", lambda interval_s: nullcontext(interval_s))
    monkeypatch.setattr(Analysis, "host_share", share)
    profiling.run_profile(print, None, plan=None, models=None, namespace={}, quiet=True, **options)
    assert (found, calls) == ([options["stacks"] is True, worth], made)


def test_ceilings_that_a_layer_exceeds_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    recording = ByHand().step(0, 9).recording(ceilings={"on": "cpu", "bytes_per_s": 1.0})

    def measured(*args: Any, refresh: bool) -> dict[str, float]:
        asked.append((*args, refresh))
        return {"bytes_per_s": 2.0}

    monkeypatch.setattr("perfnb.step.ceilings.measure_ceilings", measured)

    def profile(roofline: Any) -> Any:
        return SimpleNamespace(_analysis=SimpleNamespace(roofline=roofline), _recording=recording, _kept=None)

    for fine in (profile(None), profile(SimpleNamespace(refuted=[], peaks={}))):
        assert profiling._under_right_ceilings(fine) is fine
    refuted = profile(SimpleNamespace(refuted=["net"], peaks={"float32": 1.0}))
    assert profiling._under_right_ceilings(refuted).meta["ceilings"] == {"on": "cpu", "bytes_per_s": 2.0}
    assert asked == [({"float32": 1.0}, "cpu", True)]
    assert recording.meta["ceilings"]["bytes_per_s"] == 1.0


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the calls to torch's compiler instead of making them."""
    said: list[str] = []

    @contextmanager
    def block() -> Iterator[None]:
        said.append("begin")
        yield
        said.append("end")

    monkeypatch.setattr(compiler, "missing_names", list)
    monkeypatch.setattr(compiler, "begin_for_profiling", lambda: said.append("from now on"))
    monkeypatch.setattr(compiler, "profiling_block", block)
    monkeypatch.setattr(compiler, "compiled_graphs", lambda: [SHARED])
    return said


def test_code_is_compiled_for_profiling_from_now_on_or_in_a_block(compiling: list[str]) -> None:
    block = perfnb.compile_for_profiling()
    assert compiling == ["from now on"]
    with block:
        assert compiling == ["from now on", "begin"]
    assert compiling == ["from now on", "begin", "end"]


def test_the_graphs_of_a_block_are_written_at_its_end(compiling: list[str], tmp_path: Path) -> None:
    path = tmp_path / "provenance.json"
    block = perfnb.compile_for_profiling(path)
    assert compiling == []
    with block:
        assert not path.exists()
    assert path.read_bytes() == written([SHARED])
    assert compiling == ["begin", "end"]


def test_a_torch_that_cannot_report_layers_is_warned_of(compiling: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "missing_names", lambda: ["torch.a", "torch.b"])
    with pytest.warns(RuntimeWarning, match=r"\(it has no torch\.a\)") as warned:
        perfnb.compile_for_profiling()
    assert warned[0].filename == __file__
    assert compiling == ["from now on"]
