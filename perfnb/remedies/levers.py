"""The levers: each one object that says what it needs, how it is switched on and off, and which lines keep it.

Adding one is one object here and its name in `LEVERS`. A lever is switched between single steps, so switching is cheap;
what it must prepare (compile, convert) it does when first switched on.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from perfnb.remedies.ladder import Values
from perfnb.remedies.subject import Subject
from perfnb.remedies.values import compare_batches
from perfnb.step.environment import usable_cpus

Switch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Lever:
    """A change of how a step runs, applied from outside and undone."""

    name: str
    #: One line: what it does.
    words: str
    #: Why it cannot be tried on a step; empty if it can.
    refuses: Callable[[Subject], str]
    #: A context in which it is prepared; gives a function that returns a context in which the lever is on.
    prepared: Callable[[Subject], AbstractContextManager[Switch]]
    #: The lines that keep it, in the user's names; none if they cannot be named.
    code: Callable[[Subject], list[str]]
    #: Whether it computes in a lower precision on purpose, and so in which dtype.
    lowers: str = ""
    #: Bottlenecks in `findings` that it answers.
    answers: tuple[str, ...] = ()
    #: Whether preparing it costs so much that it is tried only if a finding gives reason, or by name.
    costly: bool = False
    #: Whether it may draw random numbers in another order, as compiled code does.
    reorders: bool = False
    #: Whether it works ahead, so that it is timed in blocks of turns; while on, it changes the subject's `batches`.
    in_blocks: bool = False
    #: Its own check of results, with it prepared; by default results are compared with float64.
    check: Callable[[Subject, Switch], Values] | None = None


def _nothing(_: Subject) -> str:
    return ""


def _always(on: Callable[[Subject], AbstractContextManager[Any]]) -> Callable[[Subject], Any]:
    """A lever without anything to prepare."""

    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        yield lambda: on(subject)

    return prepared


# Threads


def _one_thread(subject: Subject) -> str:
    return "" if _other_threads(subject) else "torch uses one thread per core already, and there is only one core"


def _other_threads(_: Subject) -> int:
    """One thread per core, or half as many where torch uses that already."""
    cores, now = max(1, int(usable_cpus())), torch.get_num_threads()
    wanted = cores if now != cores else max(1, cores // 2)
    return wanted if wanted != now else 0


@contextmanager
def _prepare_threads(subject: Subject) -> Iterator[Switch]:
    wanted = _other_threads(subject)

    @contextmanager
    def on() -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(wanted)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    yield on


# torch.compile


def _cannot_compile(subject: Subject) -> str:
    if not subject.models:
        return "the step calls no model that perfnb can see"
    if any(isinstance(module, torch._dynamo.OptimizedModule) for module in subject.modules(nn.Module)):
        return "the model is compiled already"
    if subject.kinds == {"cpu"} and not _compiler():
        return "torch.compile needs a C++ compiler (g++ or clang++) here, and none was found"
    return ""


def _compiler() -> bool:
    from shutil import which

    return any(which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def _compiled(**options: Any) -> Callable[[Subject], Any]:
    @contextmanager
    def prepared(subject: Subject) -> Iterator[Switch]:
        fast = {name: torch.compile(model.forward, **options) for name, model in subject.models.items()}

        @contextmanager
        def on() -> Iterator[None]:
            with ExitStack() as stack:
                for name, model in subject.models.items():
                    stack.enter_context(_attribute(model, "forward", fast[name]))
                yield

        try:
            yield on
        finally:
            for model in subject.models.values():
                with suppress(Exception):  # private; without it the compiled code stays until the process ends
                    torch._dynamo.eval_frame.remove_from_cache(model.forward)

    return prepared


@contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object itself, and take it away again."""
    own = vars(owner)
    had, before = name in own, own.get(name)
    own[name] = value
    try:
        yield
    finally:
        if had:
            own[name] = before
        else:
            own.pop(name, None)


# Precision


def _autocast_refuses(subject: Subject) -> str:
    if not subject.models:
        return "the step calls no model that perfnb can see"
    dtypes = {parameter.dtype for parameter in subject.parameters}
    if torch.float32 not in dtypes:
        return "the model is not in float32"
    if subject.kinds - {"cpu", "cuda"}:
        return f"perfnb has not tried autocast on {', '.join(sorted(subject.kinds))}"
    return ""


def _kind(subject: Subject) -> str:
    return next((kind for kind in sorted(subject.kinds) if kind != "cpu"), "cpu")


@contextmanager
def _forward_within(subject: Subject, context: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Run the models' forward, and nothing else, within a context."""

    def inside(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with context():
                return forward(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for model in subject.models.values():
            stack.enter_context(_attribute(model, "forward", inside(model.forward)))
        yield


def _autocast(subject: Subject) -> AbstractContextManager[Any]:
    return _forward_within(subject, lambda: torch.autocast(_kind(subject), torch.bfloat16))


@contextmanager
def _matmul_precision(subject: Subject) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if _kind(subject) == "cuda" else "medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _matmul_refuses(subject: Subject) -> str:
    if torch.float32 not in {parameter.dtype for parameter in subject.parameters}:
        return "the model is not in float32"
    if torch.get_float32_matmul_precision() != "highest":
        return "float32 products are in lower precision already"
    if _kind(subject) == "cpu" and not _native_bf16():
        return "this CPU has no bfloat16 instructions, so torch would not use a lower precision"
    return ""


def _native_bf16() -> bool:
    from perfnb.step.environment import lower_precision

    return lower_precision("cpu") is not None


# Layout


def _no_convolutions(subject: Subject) -> str:
    found = any(True for _ in subject.modules(nn.Conv2d, nn.ConvTranspose2d))
    return "" if found else "the model has no 2-D convolutions"


@contextmanager
def _prepare_channels_last(subject: Subject) -> Iterator[Switch]:
    weights = [p for p in subject.parameters if p.dim() == 4]

    def convert(value: Any) -> Any:
        is_image = isinstance(value, torch.Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if is_image else value

    @contextmanager
    def on() -> Iterator[None]:
        with ExitStack() as stack:
            for weight in weights:
                before = weight.data
                weight.data = before.contiguous(memory_format=torch.channels_last)
                stack.callback(_copy_back, weight, before)
            for model in subject.models.values():
                hook = model.register_forward_pre_hook(lambda _, args: tree_map(convert, args))
                stack.callback(hook.remove)
            yield

    yield on


def _copy_back(weight: nn.Parameter, before: torch.Tensor) -> None:
    """Give a weight its own memory back, with the values that it has now."""
    before.copy_(weight.data)
    weight.data = before


# Optimizers

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


def _cannot_fuse(subject: Subject) -> str:
    if not subject.optimizers:
        return "the step has no optimizer that perfnb can see"
    for optimizer in subject.optimizers.values():
        if type(optimizer) not in _FUSED:
            return f"{type(optimizer).__name__} has no fused implementation"
        groups = optimizer.param_groups
        if any(group.get("fused") for group in groups):
            return "the optimizer is fused already"
        if any(group.get("differentiable") or group.get("capturable") for group in groups):
            return "a differentiable or capturable optimizer cannot be fused"
        held = [parameter for group in groups for parameter in group["params"]]
        if any(not parameter.is_floating_point() or parameter.device.type not in ("cpu", "cuda") for parameter in held):
            return "a fused update needs real floating-point parameters on CPU or CUDA"
    if any(module.sparse for module in subject.modules(nn.Embedding, nn.EmbeddingBag)):
        return "a fused update does not take sparse gradients"
    return ""


def _cannot_foreach(subject: Subject) -> str:
    if not subject.optimizers:
        return "the step has no optimizer that perfnb can see"
    for optimizer in subject.optimizers.values():
        groups = optimizer.param_groups
        if not all("foreach" in group for group in groups):
            return f"{type(optimizer).__name__} has no implementation that updates all parameters at once"
        if any(group["foreach"] or group.get("fused") for group in groups):
            return "the optimizer updates all parameters at once already"
        if any(group.get("differentiable") for group in groups):
            return "a differentiable optimizer cannot update all parameters at once"
    if any(module.sparse for module in subject.modules(nn.Embedding, nn.EmbeddingBag)):
        return "updating all parameters at once does not take sparse gradients"
    return ""


def _grouped(**flags: bool) -> Callable[[Subject], AbstractContextManager[Any]]:
    @contextmanager
    def on(subject: Subject) -> Iterator[None]:
        groups = [group for optimizer in subject.optimizers.values() for group in optimizer.param_groups]
        before = [{name: group[name] for name in flags if name in group} for group in groups]
        for group in groups:
            group.update({name: value for name, value in flags.items() if name in group})
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group.update(values)

    return on


def _optimizer_code(flag: str) -> Callable[[Subject], list[str]]:
    def code(subject: Subject) -> list[str]:
        named = [name for name in subject.optimizers if name.isidentifier()]
        if len(named) != len(subject.optimizers) or any(_is_class(name, subject) for name in named):
            return []
        return [f"for group in {name}.param_groups: group[{flag!r}] = True" for name in named]

    return code


def _is_class(name: str, subject: Subject) -> bool:
    return name == type(subject.optimizers[name]).__name__


# Others


def _trains(subject: Subject) -> str:
    return "the step computes gradients" if subject.trains else ""


@contextmanager
def _inference(_: Subject) -> Iterator[None]:
    with torch.inference_mode():
        yield


@contextmanager
def _without_collections(_: Subject) -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _no_loader(subject: Subject) -> str:
    if subject.loader is None:
        return "no DataLoader feeds the step (pass it as batches, or as loader=)"
    if subject.loader[1].num_workers:
        return "the loader has workers already"
    if subject.batches is not subject.loader[1]:
        return "the step's batches do not come straight from the loader"
    return ""


def _workers_for(subject: Subject) -> int:
    """As many workers as cores that the training leaves, at least one and at most four."""
    return max(1, min(4, int(usable_cpus()) - 1))


@contextmanager
def _workers(subject: Subject) -> Iterator[DataLoader[Any]]:
    ahead = loader_with_workers(subject.batches, _workers_for(subject))
    try:
        yield ahead
    finally:
        iterator: Any = ahead._iterator
        if iterator is not None:
            ahead._iterator = None
            iterator._shutdown_workers()


@contextmanager
def _prepare_workers(subject: Subject) -> Iterator[Switch]:
    with _workers(subject) as ahead:

        @contextmanager
        def on() -> Iterator[None]:
            before, subject.batches = subject.batches, ahead
            try:
                yield
            finally:
                subject.batches = before

        yield on


def _same_batches(subject: Subject, _: Switch) -> Values:
    with _workers(subject) as fresh:  # one that has run draws the order of its next epoch otherwise
        return compare_batches(subject.batches, fresh, subject)


def _loader_code(subject: Subject) -> list[str]:
    assert subject.loader is not None
    name = subject.loader[0]
    line = f"DataLoader(..., num_workers={_workers_for(subject)}, persistent_workers=True)"
    return [f"{name} = {line}  # and its other arguments" if name else line]


def loader_with_workers(loader: DataLoader[Any], workers: int) -> DataLoader[Any]:
    """A copy of a loader, from its own attributes, that loads ahead in workers."""
    shape: dict[str, Any]
    if isinstance(loader.dataset, IterableDataset):  # takes no sampler
        shape = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        shape = {"batch_sampler": loader.batch_sampler}
    else:
        shape = {"batch_size": None, "sampler": loader.sampler}
    return DataLoader(
        loader.dataset,
        **shape,
        num_workers=workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        persistent_workers=True,
        prefetch_factor=2,
    )


def _cannot_checkpoint(subject: Subject) -> str:
    if not subject.trains:
        return "the step computes no gradients, so it keeps nothing for backward"
    return "" if _blocks(subject) else "the model has no list of blocks (ModuleList or Sequential) to recompute"


def _blocks(subject: Subject) -> list[nn.Module]:
    """The blocks of the longest list of like modules: the layers of a transformer, the stages of a network."""
    lists = [list(module.children()) for module in subject.modules(nn.ModuleList, nn.Sequential)]
    return max((found for found in lists if len(found) > 1), key=len, default=[])


@contextmanager
def _checkpointed(subject: Subject) -> Iterator[None]:
    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)

    with ExitStack() as stack:
        for block in _blocks(subject):
            stack.enter_context(_attribute(block, "forward", recomputed(block.forward)))
        yield


def _no_cuda(subject: Subject) -> str:
    return "" if "cuda" in subject.kinds else "the step does not run on CUDA"


@contextmanager
def _cudnn(_: Subject) -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _attention_refuses(subject: Subject) -> str:
    found = [model for model in subject.models.values() if hasattr(model, "set_attn_implementation")]
    if not found:
        return "only models of Hugging Face can be switched to fused attention from outside"
    if all(getattr(model.config, "_attn_implementation", None) == "sdpa" for model in found):
        return "attention is fused already"
    return ""


@contextmanager
def _fused_attention(subject: Subject) -> Iterator[None]:
    with ExitStack() as stack:
        models: list[Any] = [model for model in subject.models.values() if hasattr(model, "set_attn_implementation")]
        for model in models:
            stack.callback(model.set_attn_implementation, model.config._attn_implementation)
            model.set_attn_implementation("sdpa")
        yield


def _for_models(line: str) -> Callable[[Subject], list[str]]:
    """Code with a line for each model; ``{}`` stands for its name."""

    def code(subject: Subject) -> list[str]:
        named = all(name.isidentifier() and name != type(m).__name__ for name, m in subject.models.items())
        return [line.format(name) for name in subject.models] if named else []

    return code


LEVERS: tuple[Lever, ...] = (
    Lever(
        "threads",
        "another number of threads for torch's operators: one per core, or half as many",
        _one_thread,
        _prepare_threads,
        lambda subject: [f"torch.set_num_threads({_other_threads(subject)})"],
        answers=("threads and cores",),
    ),
    Lever(
        "compile",
        "torch.compile of the models the step calls",
        _cannot_compile,
        _compiled(),
        _for_models("{0} = torch.compile({0})"),
        answers=("dispatch overhead", "launch overhead", "memory bandwidth"),
        costly=True,
        reorders=True,
    ),
    Lever(
        "autocast",
        "bfloat16 autocast of the models' forward pass",
        _autocast_refuses,
        _always(_autocast),
        lambda subject: [
            f"with torch.autocast({_kind(subject)!r}, torch.bfloat16):  # around the model's forward pass"
        ],
        lowers="bfloat16",
        answers=("low precision unused", "compute"),
    ),
    Lever(
        "float32_precision",
        "matrix products of float32 in TF32 (NVIDIA) or bfloat16 (CPUs that have it)",
        _matmul_refuses,
        _always(_matmul_precision),
        lambda subject: [f'torch.set_float32_matmul_precision("{"high" if _kind(subject) == "cuda" else "medium"}")'],
        lowers="bfloat16",
        answers=("low precision unused",),
    ),
    Lever(
        "channels_last",
        "images and convolutions with the channels innermost",
        _no_convolutions,
        _prepare_channels_last,
        _for_models("{0} = {0}.to(memory_format=torch.channels_last)  # and its inputs"),
        answers=("compute", "memory bandwidth"),
    ),
    Lever(
        "fused_optimizer",
        "the optimizer's update in one fused kernel",
        _cannot_fuse,
        _always(_grouped(fused=True, foreach=False)),
        _optimizer_code("fused"),
        answers=("optimizer",),
    ),
    Lever(
        "foreach_optimizer",
        "the optimizer's update of all parameters at once, instead of one after the other",
        _cannot_foreach,
        _always(_grouped(foreach=True)),
        _optimizer_code("foreach"),
        answers=("optimizer",),
    ),
    Lever(
        "attention",
        "fused attention in models of Hugging Face",
        _attention_refuses,
        _always(_fused_attention),
        _for_models('{0}.set_attn_implementation("sdpa")'),
        answers=("attention unfused",),
    ),
    Lever(
        "inference_mode",
        "torch.inference_mode around a step without backward",
        _trains,
        _always(_inference),
        lambda _: ["with torch.inference_mode():  # around the step"],
    ),
    Lever(
        "gc_freeze",
        "no garbage collection inside the step",
        _nothing,
        _always(_without_collections),
        lambda _: ["gc.collect(); gc.freeze(); gc.disable()  # before the loop"],
        answers=("garbage collection",),
    ),
    Lever(
        "cudnn_benchmark",
        "cuDNN tries its convolution algorithms and keeps the fastest",
        lambda subject: _no_cuda(subject) or _no_convolutions(subject),
        _always(_cudnn),
        lambda _: ["torch.backends.cudnn.benchmark = True"],
    ),
    Lever(
        "loader_workers",
        "worker processes that load batches ahead, on a copy of the loader",
        _no_loader,
        _prepare_workers,
        _loader_code,
        answers=("input pipeline",),
        costly=True,
        in_blocks=True,
        check=_same_batches,
    ),
    Lever(
        "checkpointing",
        "recompute the activations of the longest list of blocks in backward",
        _cannot_checkpoint,
        _always(_checkpointed),
        lambda _: [],
        answers=("activation memory",),
        costly=True,
    ),
)


def by_name() -> dict[str, Lever]:
    """The levers by name."""
    return {lever.name: lever for lever in LEVERS}
