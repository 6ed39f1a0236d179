"""Each lever: it has its described effect, its lines have the same effect when they run, and it names the reason if it
does not apply.
"""

from __future__ import annotations

import builtins
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfnb.bench.values import NOISE, REDUCED, SAME
from perfnb.errors import CaptureError
from perfnb.remedies.lever import Lever, prepared
from perfnb.remedies.levers import LEVERS, attention, by_name, loading
from perfnb.remedies.levers import optimizers as updates
from perfnb.remedies.levers.loading import workers_needed
from perfnb.remedies.levers.precision import prepared_float16
from perfnb.remedies.levers.threads import candidates
from perfnb.remedies.state import fingerprint, untouched
from perfnb.remedies.subject import Subject, find_subject
from perfnb.remedies.switches import float32_precisions
from perfnb.remedies.values import check, measure_yardstick
from perfnb.step.namespace import namespace_of
from tests.fake_clock import FakeClock

TRAIN = "opt.zero_grad()\nloss = model(x).square().mean()\nloss.backward()\nopt.step()"
FILLS = TRAIN.replace("zero_grad()", "zero_grad(set_to_none=False)")
LAST = TRAIN.replace("model(x)", "model(x).last_hidden_state")
INFER = "with torch.no_grad(): out = model(x)"


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.0
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 16))


class Tower(nn.Module):
    """A model whose longest list of blocks is below its root."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(5)))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.blocks(x))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2))


def bert() -> nn.Module:
    """Return a model whose attention is a class that is chosen when it is made."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50,
        attn_implementation="eager", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = transformers.BertModel(config)
    return model


def llama() -> nn.Module:
    """Return a model whose attention can be switched."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50,
        attn_implementation="eager",
    )  # fmt: skip
    model: nn.Module = transformers.LlamaModel(config)
    return model


def double() -> nn.Module:
    return mlp().double()


SHAPES = {
    bert: (2, 8),
    llama: (2, 8),
    mlp: (8, 16),
    double: (8, 16),
    cnn: (4, 3, 8, 8),
    Attention: (2, 6, 16),
    Tower: (8, 16),
}


def world(make: Callable[[], nn.Module] = mlp, source: str = TRAIN, **optimizer: Any) -> dict[str, Any]:
    """Return a user's variables, among them a step that looks them up by name; the same each time."""
    torch.manual_seed(0)
    model = make()
    x = torch.randn(SHAPES[make]).to(next(model.parameters()).dtype)
    names: dict[str, Any] = {"torch": torch, "model": model, "x": x}
    if make in (bert, llama):
        names["x"] = torch.randint(50, SHAPES[make])
    names["opt"] = torch.optim.AdamW(names["model"].parameters(), lr=0.01, **optimizer)
    body = source.replace("\n", "\n    ")
    exec(
        f"def step():\n    {body.replace('loss =', 'global loss; loss =').replace('out =', 'global out; out =')}", names
    )
    names["step"]()
    return names


def subject_of(names: dict[str, Any]) -> Subject:
    return find_subject(names["step"], None, namespace_of(names["step"]))


def results(names: dict[str, Any]) -> list[torch.Tensor]:
    if "out" in names and "loss" not in names:
        return [names["out"]]
    return [names["loss"], *(parameter.detach().clone() for parameter in names["model"].parameters())]


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Put back the global switches that a user's lines set."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    parts = {name: value for name, value in float32_precisions().items() if name.startswith("torch.backends")}
    yield
    gc.enable()
    gc.unfreeze()
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    for name, value in parts.items():
        exec(f"{name}.fp32_precision = {value!r}", {"torch": torch})


#: For each lever that can be tried on a CPU, a step, and what its results may be called.
STEPS: dict[str, tuple[Callable[[], dict[str, Any]], set[str]]] = {
    "threads": (world, {SAME, NOISE}),
    "compile": (world, {SAME, NOISE}),
    "autocast": (world, {REDUCED}),
    "float32_precision": (world, {SAME, REDUCED}),
    "channels_last": (lambda: world(cnn), {SAME, NOISE}),
    "fused_optimizer": (world, {SAME, NOISE}),
    "foreach_optimizer": (world, {SAME, NOISE}),
    "set_to_none": (lambda: world(source=FILLS), {SAME}),
    "attention": (lambda: world(llama, LAST), {SAME, NOISE}),
    "sdpa_math": (lambda: world(Attention), {SAME, NOISE}),
    "inference_mode": (lambda: world(source=INFER), {SAME}),
    "quantize_dynamic": (lambda: world(source=INFER), {REDUCED}),
    "gc_freeze": (world, {SAME}),
    "checkpointing": (world, {SAME}),
}
SLOW = {"compile": pytest.mark.deep, "quantize_dynamic": pytest.mark.slow}


def lever_for(name: str, monkeypatch: pytest.MonkeyPatch) -> Lever:
    if name == "quantize_dynamic":
        pytest.importorskip("torchao")
    if name == "float32_precision":
        monkeypatch.setattr("perfnb.remedies.levers.precision.lower_precision", lambda kind: "bfloat16")
    return by_name()[name]


TRIED = [pytest.param(name, marks=SLOW.get(name, ())) for name in STEPS]


@pytest.mark.filterwarnings("ignore:::torchao")
@pytest.mark.parametrize("name", TRIED)
def test_a_levers_lines_do_what_the_lever_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lever, mine, yours = lever_for(name, monkeypatch), STEPS[name][0](), STEPS[name][0]()
    subject = subject_of(mine)
    assert lever.refuses(subject) == ""
    before = fingerprint(subject)
    with lever.prepared(subject) as switch:
        code = "\n".join(lever.code(subject))
        with subject.restored(), switch():
            mine["step"]()
            tried = results(mine)
    assert fingerprint(subject) == before
    assert code
    exec(code, yours)
    yours["step"]()
    for one, other in zip(tried, results(yours), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*TRIED, "float32"])
def test_what_each_lever_computes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, expected = STEPS.get(name, (lambda: world(double), {REDUCED}))
    lever, subject = lever_for(name, monkeypatch), subject_of(make())
    with untouched(subject):
        yardstick = measure_yardstick(subject)
        with prepared(lever, subject, 0.0) as one:
            assert check([one], subject, yardstick).verdict in expected


@contextmanager
def on(name: str, subject: Subject) -> Iterator[None]:
    with by_name()[name].prepared(subject) as switch, switch():
        yield


def saved_for_backward(step: Callable[[], Any]) -> int:
    """Return how many tensors a step keeps for its backward pass, outside recomputed blocks."""
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (kept.append(tensor.shape), tensor)[1], lambda it: it):
        step()
    return len(kept)


@pytest.mark.parametrize(("make", "where"), [(mlp, "a model"), (Tower, "Tower's blocks")])
def test_checkpointing_and_its_lines_keep_the_same_for_backward(make: Callable[[], nn.Module], where: str) -> None:
    mine, yours = world(make), world(make)
    lever, subject = by_name()["checkpointing"], subject_of(mine)
    with on("checkpointing", subject):
        kept = saved_for_backward(mine["step"])
    exec("\n".join(lever.code(subject)), yours)
    assert saved_for_backward(yours["step"]) == kept
    assert saved_for_backward(mine["step"]) != kept
    subject.models = {"a model": mine["model"]}
    assert lever.code(subject)[0].startswith(f"# each block of {where}: ")


def test_the_fused_flag_is_set_in_every_group() -> None:
    names = world()
    names["opt"].add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    with on("fused_optimizer", subject_of(names)):
        assert [group["fused"] for group in names["opt"].param_groups] == [True, True]
    assert [group["fused"] for group in names["opt"].param_groups] == [None, None]


def test_counts_of_updates_are_where_a_fused_kernel_reads_them_while_it_is_on() -> None:
    away, here = nn.Parameter(torch.ones(1, device="meta")), nn.Parameter(torch.ones(1))
    counts = [torch.tensor(3.0, dtype=torch.float64), torch.tensor(5.0)]
    opt = torch.optim.Adam([away, here])
    opt.state[away]["step"], opt.state[here]["step"] = counts
    with updates._steps_on_device(opt):
        moved = opt.state[away]["step"]
        assert (moved.device.type, moved.dtype, opt.state[here]["step"]) == ("meta", torch.float32, counts[1])
        opt.state[away]["step"] = torch.tensor(4.0)  # "meta" holds no number that could be moved back
    assert opt.state[away]["step"] is counts[0]
    assert [opt.state[one]["step"].item() for one in (away, here)] == [4, 5]


def test_gradients_filled_with_zeros_are_found_and_freed() -> None:
    names = world(source=FILLS)
    subject = subject_of(names)
    lever = by_name()["set_to_none"]
    assert lever.refuses(subject) == ""
    assert lever.code(subject) == ["# in the step: opt.zero_grad()  instead of opt.zero_grad(set_to_none=False)"]
    with on("set_to_none", subject):
        names["opt"].zero_grad(set_to_none=False)
        assert all(parameter.grad is None for parameter in names["model"].parameters())
    assert "zero_grad" not in vars(names["opt"])


def test_attention_that_a_model_chose_for_good_is_refused_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    names = world(bert, LAST)
    subject = subject_of(names)
    with untouched(subject):
        why = by_name()["attention"].refuses(subject)
    assert "when it is created" in why
    assert 'BertModel.from_pretrained(..., attn_implementation="sdpa")' in why
    assert not caplog.records
    assert not logging.getLogger("transformers.modeling_utils").disabled


def test_attention_is_refused_where_the_step_still_calls_none_that_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.attention._attention_ops", lambda subject: set())
    assert "still does not call fused" in by_name()["attention"].refuses(subject_of(world(llama, LAST)))


@pytest.mark.parametrize(
    ("making", "using", "cores", "workers"),
    [
        (0.01, 0.02, 2, 1),  # one makes batches fast enough for the step
        (0.03, 0.02, 4, 2),
        (0.10, 0.01, 2, 2),  # DataLoader warns of more than there are cores
        (0.0, 0.0, 0.5, 1),
    ],
)
def test_how_many_workers_are_tried(making: float, using: float, cores: float, workers: int) -> None:
    assert workers_needed(making, using, cores) == workers


@pytest.mark.parametrize(
    ("batches_ms", "making_s", "made"),
    [
        ([300.0, 100.0, 200.0], 0.2, 3),
        ([10.0, 30.0, 30.0, 10.0, 10.0, 50.0], 0.01, 5),
        ([600.0, 401.0, 1.0], 0.5005, 2),  # longer than a second
        ([], 0.0, 0),
    ],
)
def test_how_long_a_batch_takes_to_make_and_to_use(
    batches_ms: list[float], making_s: float, made: int, clock: FakeClock
) -> None:
    steps_ms, begun = iter([40.0, 20.0]), list[float]()

    def batches() -> Iterator[float]:
        for ms in batches_ms:
            begun.append(ms)
            clock.pass_exactly(ms)
            yield ms

    subject: Any = SimpleNamespace(
        loader=("loader", batches()),
        restored=nullcontext,
        gate=SimpleNamespace(opened=nullcontext),
        run=lambda: clock.pass_exactly(next(steps_ms)),
    )
    assert loading._making(subject) == pytest.approx((making_s, 0.02), abs=1e-5)
    assert len(begun) == made


class Trainer:
    def __init__(self) -> None:
        names = world()
        self.o, self.x, self.net = names["opt"], names["x"], names["model"]

    def fit(self) -> None:
        self.o.zero_grad()
        self.net(self.x).sum().backward()
        self.o.step()


def test_an_optimizer_in_an_attribute_has_its_lines() -> None:
    lines = by_name()["fused_optimizer"].code(find_subject(fit := Trainer().fit, None, namespace_of(fit)))
    assert lines == ["for group in self.o.param_groups: group.update(fused=True, foreach=False)"]


def test_an_optimizer_in_a_dict_has_its_lines() -> None:
    names = world()
    opts = {"a": names.pop("opt")}

    def step() -> None:
        opts["a"].zero_grad()
        names["model"](names["x"]).sum().backward()
        opts["a"].step()

    lines = by_name()["foreach_optimizer"].code(find_subject(step, None, namespace_of(step)))
    assert lines == ["for group in opts['a'].param_groups: group.update(foreach=True)"]


def test_an_optimizer_without_a_name_has_a_line_that_says_where() -> None:
    subject = subject_of(world())
    subject.optimizers = {"AdamW": subject.optimizers["opt"]}
    assert by_name()["fused_optimizer"].code(subject) == ["# where the AdamW is created: fused=True"]


def test_what_the_step_does_not_use_is_refused() -> None:
    names, other = world(), mlp()
    space = namespace_of(names["step"])
    with pytest.raises(CaptureError, match="does not call any part of model="):
        find_subject(names["step"], None, space, models=[other])
    with pytest.raises(CaptureError, match="does not update any parameter"):
        find_subject(names["step"], None, space, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))


def test_the_backend_of_attention_in_use_is_not_tried() -> None:
    names = world(Attention)
    levers, subject = by_name(), subject_of(names)
    assert "already" in levers["sdpa_flash"].refuses(subject)
    assert "not available for cpu" in levers["sdpa_cudnn"].refuses(subject)
    assert "not available for cpu" in levers["sdpa_efficient"].refuses(subject)
    with sdpa_kernel(SDPBackend.MATH):
        subject.chosen.clear()
        assert "already" in levers["sdpa_math"].refuses(subject)
        assert levers["sdpa_flash"].refuses(subject_of(names)) == ""


def test_a_backend_without_a_kernel_for_the_inputs_is_not_tried(recwarn: pytest.WarningsRecorder) -> None:
    """torch warns about backends that it cannot use, and only perfnb asked for this one."""
    names = world(Attention)
    names["model"].dropout = 0.1
    assert by_name()["sdpa_flash"].refuses(subject_of(names)) == (
        "torch has no kernel of this backend for these inputs: Both fused kernels do not support non-zero dropout"
    )
    assert not recwarn.list


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("compile_reduce_overhead", world, "this mode is for CUDA"),
        ("compile_max_autotune", world, "this mode is for CUDA"),
        ("autocast_float16", world, "bfloat16 needs no gradient scaler"),
        ("cudnn_benchmark", world, "does not run on CUDA"),
        ("channels_last", world, "no 2-D convolutions"),
        ("attention", world, "Hugging Face"),
        ("set_to_none", world, "does not call any zero_grad"),
        ("set_to_none", lambda: world(source=INFER), "no gradients"),
        ("sdpa_math", world, "does not call"),
        ("inference_mode", world, "computes gradients"),
        ("fused_optimizer", lambda: world(fused=True), "already fused"),
        ("foreach_optimizer", lambda: world(foreach=True), "already updates all parameters at once"),
        ("loader_workers", world, "no DataLoader"),
        ("checkpointing", lambda: world(Attention), "no list of blocks"),
        ("checkpointing", lambda: world(source=INFER), "no gradients"),
    ],
)
def test_why_a_lever_does_not_apply(name: str, make: Callable[[], dict[str, Any]], words: str) -> None:
    subject = subject_of(make())
    assert words in by_name()[name].refuses(subject)


def test_the_line_for_inference_mode_wraps_a_step_that_a_variable_holds() -> None:
    lever, subject = by_name()["inference_mode"], subject_of(world(source=INFER))
    assert lever.code(subject) == ["step = torch.inference_mode()(step)"]
    subject.step = Attention.forward  # the module has no variable of that name
    assert lever.code(subject) == ["# with torch.inference_mode():  around the step"]


def made(model: nn.Module | None, kind: str = "cpu", **parts: Any) -> Subject:
    """Return a subject whose model pretends to be on the given kind of device."""
    optimizers = parts.pop("optimizers", {})
    return Subject(print, None, {} if model is None else {"model": model}, optimizers, None, kinds={kind}, **parts)


@pytest.mark.parametrize(
    ("name", "subject", "words"),
    [
        ("autocast", made(None), "the step calls no model that perfnb can see"),
        ("autocast", made(nn.Linear(2, 2).double()), "the model is not in float32"),
        ("autocast", made(nn.Linear(2, 2), "mps"), "perfnb has not been tested with autocast on mps"),
        ("autocast", made(nn.Linear(2, 2), "cuda"), ""),
        ("autocast_float16", made(nn.Linear(2, 2), "cuda"), ""),
        ("autocast_float16", made(None, "cuda"), "the step calls no model that perfnb can see"),
        ("float32", made(None), "the step calls no model that perfnb can see"),
        ("float32", made(nn.Linear(2, 2)), "the model is not in float64"),
        ("float32", made(nn.Linear(2, 2).double()), ""),
        ("float32_precision", made(nn.Linear(2, 2).double()), "the model is not in float32"),
        ("float32_precision", made(nn.Linear(2, 2), "mps"), "torch has no such setting for mps"),
        ("compile", made(None), "the step calls no model that perfnb can see"),
        ("compile_max_autotune", made(nn.Linear(2, 2), "cuda"), ""),
        ("compile_reduce_overhead", made(None, "cuda"), "the step calls no model that perfnb can see"),
        ("sdpa_math", made(None), "the step calls no model that perfnb can see"),
        ("sdpa_cudnn", made(nn.Linear(2, 2)), "this backend is not available for cpu"),
        ("quantize_dynamic", made(nn.Linear(2, 2), trains=True), "the step computes gradients"),
        ("quantize_dynamic", made(None), "the step calls no model that perfnb can see"),
        ("quantize_dynamic", made(nn.Conv2d(1, 1, 1)), "the model has no linear layers"),
        ("quantize_dynamic", made(nn.Linear(2, 2).double()), "the model is not in float32"),
        ("quantize_dynamic", made(nn.Linear(2, 2)), "int8 needs torchao, which is not installed: pip install torchao"),
    ],
)
def test_what_a_lever_needs_of_models_and_devices(
    name: str, subject: Subject, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.inference.find_spec", lambda name: None)
    assert by_name()[name].refuses(subject) == words


@pytest.mark.parametrize(
    ("found", "why"), [("clang++", ""), ("g++", ""), ("mine", ""), ("gcc", "needs a C++ compiler"), ("", "needs a C++")]
)
def test_compiling_on_a_cpu_needs_a_compiler(found: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setattr("perfnb.remedies.levers.compiling.which", lambda name: name if name == found else None)
    said = by_name()["compile"].refuses(made(nn.Linear(2, 2)))
    assert why in said
    assert bool(said) is bool(why)
    assert by_name()["compile"].refuses(made(nn.Linear(2, 2), "cuda")) == ""


@pytest.mark.parametrize(
    ("name", "mode"),
    [("compile", None), ("compile_reduce_overhead", "reduce-overhead"), ("compile_max_autotune", "max-autotune")],
)
def test_models_are_compiled_in_the_levers_mode_and_cuda_graphs_know_each_step(
    name: str, mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, marks = list[Any](), list[None]()
    monkeypatch.setattr(torch, "compile", lambda forward, **options: asked.append(options) or (lambda x: x + 7))
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(None))
    lever, model, x = by_name()[name], nn.Linear(2, 2), torch.zeros(1, 2)
    with lever.prepared(made(model)) as switch:
        for _ in range(2):
            with switch():
                assert model(x).tolist() == [[7, 7]]
            assert "forward" not in vars(model)
    assert (asked, len(marks)) == ([{"mode": mode}], 0 if mode is None else 2)
    assert (lever.autotunes, lever.in_order is None) == (mode == "max-autotune", mode is not None)
    if lever.in_order is not None:
        with lever.in_order(made(model)):
            assert asked[1:] == [{"mode": None, "options": {"fallback_random": True}}]


def test_int8_works_on_a_copy_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def quantize(model: nn.Linear, config: str) -> None:
        assert config == "int8"
        nn.init.zeros_(model.weight)

    torchao: Any = ModuleType("torchao.quantization")
    torchao.quantize_, torchao.Int8DynamicActivationInt8WeightConfig = quantize, lambda: "int8"
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.quantization", torchao)
    model, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    own, subject, lever = model(x).tolist(), made(model), by_name()["quantize_dynamic"]
    with lever.prepared(subject) as switch:
        with switch():
            assert model(x).tolist() == [[0, 0]]
        assert model(x).tolist() == own
    assert lever.code(subject) == [
        "from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_",
        "quantize_(model, Int8DynamicActivationInt8WeightConfig())",
    ]
    assert lever.lowers == "int8"


@pytest.mark.parametrize(
    ("kind", "older", "capability", "cpu", "why"),
    [
        ("cuda", "highest", (8, 0), None, ""),
        ("cuda", "highest", (7, 5), "bfloat16", "this GPU has no units for TF32"),
        ("cuda", "high", (8, 0), None, "float32 products already use lower precision"),
        ("cpu", "highest", (7, 5), "bfloat16", ""),
        ("cpu", "medium", (7, 5), "bfloat16", "float32 products already use lower precision"),
        ("cpu", "highest", (8, 0), None, "this CPU has no bfloat16 instructions"),
    ],
)
def test_faster_float32_products_need_units_for_them(
    kind: str, older: str, capability: tuple[int, int], cpu: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr("perfnb.remedies.levers.precision.lower_precision", lambda kind: cpu)
    monkeypatch.setattr("perfnb.remedies.levers.precision.older_precision", lambda: older)
    monkeypatch.setattr("perfnb.remedies.levers.precision.newer_parts", dict)
    lever, subject = by_name()["float32_precision"], made(nn.Linear(2, 2), kind)
    said = lever.refuses(subject)
    assert said.startswith(why)
    assert bool(said) is bool(why)
    part, newer = {"cuda": ("cuda", "tf32"), "cpu": ("mkldnn", "bf16")}[kind]
    parts = {f"torch.backends.{part}.matmul": SimpleNamespace(fp32_precision=newer)}
    monkeypatch.setattr("perfnb.remedies.levers.precision.older_precision", lambda: None)
    monkeypatch.setattr("perfnb.remedies.levers.precision.newer_parts", lambda: parts)
    assert lever.refuses(subject) == "float32 products already use lower precision"
    assert lever.code(subject) == [f'torch.backends.{part}.matmul.fp32_precision = "{newer}"']


@pytest.mark.parametrize("name", ["autocast_float16", "float32"])
def test_the_lines_for_another_dtype_say_what_to_do_about_an_optimizer(name: str) -> None:
    model, lever = nn.Linear(2, 2), by_name()[name]
    alone = lever.code(made(model))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for called, word in (("opt", "opt"), ("SGD", "optimizer")):  # one without a variable is named after its class
        lines = lever.code(made(model, optimizers={called: opt}, trains=True))
        compile("\n".join(lines), "code", "exec")
        if name == "float32":
            assert lines[1:] == [f"# {line}" for line in alone]
            assert lines[0].startswith("# before the optimizer is created")
        else:
            assert lines[: len(alone)] == alone
            assert f"# scaler.step({word})  instead of {word}.step()" in lines[len(alone) :]


@pytest.mark.parametrize(
    ("ms", "fastest", "runs"),
    [
        ({4: [40] * 3, 2: [90, 30, 60], 1: [35] * 3}, 2, 9),  # the best of three
        ({4: [510], 2: [600], 1: [501]}, 1, 3),  # too slow to repeat
        ({4: [499, 900, 498], 2: [700] * 3, 1: [600] * 3}, 4, 9),
    ],
)
def test_the_fastest_number_of_threads_is_tried(
    ms: dict[int, list[float]], fastest: int, runs: int, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, ran = {count: iter(each) for count, each in ms.items()}, list[int]()

    def step() -> None:
        ran.append(torch.get_num_threads())
        clock.pass_exactly(next(steps[ran[-1]]))

    monkeypatch.setattr("perfnb.remedies.levers.threads.usable_cpus", lambda: 4)
    torch.set_num_threads(3)
    subject, lever = made(None), by_name()["threads"]
    subject.step = step
    with lever.prepared(subject) as switch, switch():
        assert torch.get_num_threads() == fastest
    assert torch.get_num_threads() == 3
    assert ran == [4, 2, 1] * (runs // 3)
    assert lever.code(subject) == [f"torch.set_num_threads({fastest})"]
    assert lever.says(subject) == [f"{fastest} thread{'s' * (fastest > 1)}"]


@pytest.mark.parametrize(
    ("cores", "now", "counts"),
    [(8, 8, [4, 2, 1]), (8, 3, [8, 4, 2, 1]), (2, 2, [1]), (2.5, 1, [2]), (1, 1, []), (0.5, 2, [1]), (6, 6, [3, 1])],
)
def test_which_numbers_of_threads_are_tried(
    cores: float, now: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.threads.usable_cpus", lambda: cores)
    torch.set_num_threads(now)
    subject = made(None)
    subject.step = lambda: pytest.fail("a single number needs no trial")
    assert candidates() == counts
    assert bool(by_name()["threads"].refuses(subject)) is (not counts)
    if len(counts) == 1:
        with by_name()["threads"].prepared(subject) as switch, switch():
            assert torch.get_num_threads() == counts[0]


def test_images_and_weights_have_their_channels_last_while_the_lever_is_on() -> None:
    seen = list[bool]()

    class Model(nn.Conv2d):
        def forward(self, x: torch.Tensor, *others: torch.Tensor, again: torch.Tensor | None = None) -> torch.Tensor:
            tensors = (x, self.weight, *others, *([] if again is None else [again]))
            seen.extend(one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last) for one in tensors)
            return super().forward(x)

    model, x = Model(3, 8, 3), torch.randn(2, 3, 5, 5)
    place, before = model.weight.data_ptr(), model.weight.detach().clone()
    with by_name()["channels_last"].prepared(made(model)) as switch, switch():
        model(x, torch.ones(2, 3, 4), torch.ones(1, 2, 3, 4, 5), again=x)
        with torch.no_grad():
            model.weight += 1
    assert seen == [True, True, False, False, False]
    assert (model.weight.data_ptr(), model.weight.is_contiguous()) == (place, True)
    assert torch.equal(model.weight, before + 1)


def test_an_error_that_is_not_about_kernels_is_left_to_the_trial_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_attention_ops", lambda subject: {attention._FUSED})
    subject = made(nn.Linear(2, 2))
    for error, words in (
        (RuntimeError("out of memory"), ""),
        (RuntimeError("No available kernel. Aborting execution."), "no kernel of this backend for these inputs"),
    ):
        subject.step = Mock(side_effect=error)
        said = by_name()["sdpa_flash"].refuses(subject)
        assert words in said
        assert bool(said) is bool(words)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
def test_float32_precision_goes_through_the_interface_that_the_user_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    lever = lever_for("float32_precision", monkeypatch)
    subject = subject_of(world())
    before = float32_precisions()
    with on("float32_precision", subject):
        assert torch.get_float32_matmul_precision() == "medium"
    assert float32_precisions() == before
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # asking through the older interface raises from now on
    before = float32_precisions()
    assert before["torch.get_float32_matmul_precision"] is None
    assert lever.refuses(subject) == ""
    assert lever.code(subject) == ['torch.backends.mkldnn.matmul.fp32_precision = "bf16"']
    with untouched(subject), on("float32_precision", subject):
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    assert float32_precisions() == before
    torch.backends.cuda.matmul.fp32_precision = "none"


CLIPS = (
    "opt.zero_grad()\nloss = model(x).square().mean()\nloss.backward()\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)\nopt.step()"
)
SCALED = (
    "opt.zero_grad()\nwith torch.autocast('cpu', torch.float16): out = model(x)\nloss = out.square().mean()\n"
    "scaler.scale(loss).backward()\nscaler.unscale_(opt)\n"
    "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)\nscaler.step(opt)\nscaler.update()"
)


def test_a_scaler_from_outside_does_what_one_in_the_step_does() -> None:
    mine, yours = world(source=CLIPS), world(source=CLIPS)
    subject = subject_of(mine)
    with untouched(subject), prepared_float16(subject, "cpu") as switch:
        with subject.restored(), switch():
            mine["step"]()
            tried = results(mine)[1:]
        yours["scaler"] = torch.amp.GradScaler("cpu", init_scale=256.0)
        exec(SCALED, yours)
        for one, other in zip(tried, results(yours)[-len(tried) :], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_scaler_finds_a_scale_that_does_not_overflow() -> None:
    names = world(source=TRAIN.replace(".mean()", ".mean() * 1e3"))
    subject = subject_of(names)
    before = results(names)
    with prepared_float16(subject, "cpu") as switch, subject.restored(), switch():
        names["step"]()
        assert not torch.equal(results(names)[-1], before[-1]), "the update was skipped"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (TRAIN.replace("loss.backward()", "loss.backward(retain_graph=True)\nloss.backward()"), "more than once"),
        (
            TRAIN.replace(
                "loss.backward()",
                "for p, g in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())): p.grad = g",
            ),
            "do not come from",
        ),
    ],
)
def test_a_step_that_a_scaler_cannot_serve_from_outside_says_so(source: str, words: str) -> None:
    subject = subject_of(world(source=source))
    backward = torch.Tensor.backward
    with pytest.raises(CaptureError, match=words), prepared_float16(subject, "cpu"):
        pass
    assert torch.Tensor.backward is backward


def test_levers_have_names_words_and_families() -> None:
    assert len({lever.name for lever in LEVERS}) == len(LEVERS)
    assert all(lever.name.isidentifier() and lever.words for lever in LEVERS)
    assert not any(hasattr(builtins, lever.name) for lever in LEVERS if lever.name != "compile")
