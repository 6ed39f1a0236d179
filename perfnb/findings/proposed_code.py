"""Generate the code that a finding may propose, which consists of lines of Python with known names only.

This module also determines which matrix units the GPU has.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfnb.recording.recording import Recording
from perfnb.recording.text import TEXT

if TYPE_CHECKING:
    from perfnb.findings.facts import Facts

Capability = tuple[int, int]

#: Modules that a line may use. The line imports those that the user has not imported.
MODULES = ("torch", "gc", "os")
#: The lowest compute capability of NVIDIA GPUs that have units for a format, or that Triton and therefore torch.compile
#: support.
NEEDS: Mapping[str, Capability] = {
    "float16": (7, 0),
    "torch.compile": (7, 0),
    "bfloat16": (8, 0),
    "TF32": (8, 0),
}
#: The line that makes a lever of `perfnb.try_levers` permanent; ``{0}`` is replaced by a model or by the chosen value.
_LINES: Mapping[str, str] = {
    "threads": "torch.set_num_threads({0})",
    "gc_freeze": "gc.collect(); gc.freeze(); gc.disable()  # before the loop; gc.collect() if memory grows",
    "compile": "{0} = torch.compile({0})",
    "compile_reduce_overhead": '{0} = torch.compile({0}, mode="reduce-overhead")',
    "compile_max_autotune": '{0} = torch.compile({0}, mode="max-autotune")',
    "channels_last": "{0} = {0}.to(memory_format=torch.channels_last)",
    "float32": "{0} = {0}.float()  # where it is made, and its inputs and targets: x = x.float()",
    "float32_precision": 'torch.set_float32_matmul_precision("{0}")',
}
#: The settings that make an optimizer update all parameters at once without losing its state.
_UPDATES: Mapping[str, str] = {
    "fused_optimizer": "fused=True, foreach=False",
    "foreach_optimizer": "foreach=True",
}
#: The setting that makes a lever permanent when a trainer runs the training, by trainer; ``{0}`` is a number of
#: workers.
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    "transformers": {
        "attention": 'attn_implementation="sdpa", where the model is made',
        "autocast": "TrainingArguments(bf16=True)",
        "checkpointing": "TrainingArguments(gradient_checkpointing=True)",
        "compile": "TrainingArguments(torch_compile=True)",
        "compile_max_autotune": 'TrainingArguments(torch_compile_mode="max-autotune")',
        "compile_reduce_overhead": 'TrainingArguments(torch_compile_mode="reduce-overhead")',
        "fused_optimizer": 'TrainingArguments(optim="adamw_torch_fused")',
        "loader_workers": "TrainingArguments(dataloader_num_workers={0})",
    },
    "lightning": {
        "autocast": 'Trainer(precision="bf16-mixed")',
        "autocast_float16": 'Trainer(precision="16-mixed")',
        "fused_optimizer": "fused=True, where configure_optimizers makes the optimizer",
        "loader_workers": "num_workers={0}, where the DataLoader for training is made",
    },
    "accelerate": {
        "autocast": 'Accelerator(mixed_precision="bf16")',
        "autocast_float16": 'Accelerator(mixed_precision="fp16")',
        "compile": 'Accelerator(dynamo_backend="inductor")',
        "fused_optimizer": "fused=True, where the optimizer for accelerator.prepare is made",
        "loader_workers": "num_workers={0}, where the DataLoader for accelerator.prepare is made",
    },
}
#: The levers that findings propose: those with lines above, and those whose lines depend on additional facts.
REMEDIES = frozenset({*_LINES, *_UPDATES, "attention", "autocast", "checkpointing", "loader_workers"})
_OTHERS = re.compile(r"\bAMD\b|Radeon|Instinct|\bMI\d{2,3}")
_NVIDIA = re.compile(r"NVIDIA|^(?:Tesla|GeForce|Quadro|TITAN)")
#: A line that sets an environment variable of PyTorch's allocator.
EXPANDABLE = 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before torch is imported'
#: A profiler that records events that a trace may lack: Python functions, and calls that wait for the GPU.
RECORD_MORE = (
    "profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, "
    "torch.profiler.ProfilerActivity.CUDA], with_stack=True, "
    "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))"
)
_NOT_PYTHON = (SyntaxError, ValueError, MemoryError, RecursionError)
#: The arguments of a DataLoader that a line may repeat.
LOADER_WORDS = (
    *("batch_size", "drop_last", "batch_sampler", "sampler", "num_workers", "collate_fn", "pin_memory", "timeout"),
    *("worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "in_order"),
)


def root_of(name: object) -> str | None:
    """Return the variable that a user's name starts with, such as ``nets`` for ``nets['a'].body``.

    The result is ``None`` if the name must not be used in a line of Python. Names may contain only attributes and
    constant keys, and must be spelled as Python itself would spell them, without comments or compatibility characters.
    """
    if not isinstance(name, str) or not name.isprintable() or "\\" in name:
        return None
    try:
        tree = ast.parse(name, mode="eval").body
        if ast.unparse(tree) != name:
            return None
    except _NOT_PYTHON:
        return None
    while isinstance(tree, (ast.Attribute, ast.Subscript)):
        if _is_dunder(tree.attr) if isinstance(tree, ast.Attribute) else not _is_key(tree.slice):
            return None
        tree = tree.value
    return tree.id if isinstance(tree, ast.Name) and tree.id not in MODULES and not _is_dunder(tree.id) else None


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_key(node: ast.expr) -> bool:
    """Return whether a subscript is a constant, such as ``'a'`` or ``-1``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and node.value is not ...


def shown(line: str, known: Collection[str]) -> str:
    """Return a line of code with the imports that it needs.

    The result is empty if the line is not valid Python, or if it uses a name that is neither known nor assigned in it.
    """
    try:
        missing = dict.fromkeys(_free(ast.parse(line), set(known)))
    except _NOT_PYTHON:
        return ""
    if not missing.keys() <= set(MODULES):
        return ""
    return f"import {', '.join(missing)}; {line}" if missing else line


def _free(tree: ast.Module, bound: set[str]) -> Iterator[str]:
    """Yield the names that a line of simple statements reads before binding them."""
    for statement in tree.body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        loops = [node for node in ast.walk(statement) if isinstance(node, (ast.comprehension, ast.For))]
        targets = {node.id for one in loops for node in ast.walk(one.target) if isinstance(node, ast.Name)}
        yield from (node.id for node in names if isinstance(node.ctx, ast.Load) and node.id not in bound | targets)
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)} - targets


def lever_line(lever: str, what: object = "") -> str:
    """Return the line of code that makes a lever permanent, for a model or for the chosen value."""
    return _LINES[lever].format(what)


def setting(trainer: object, lever: str, workers: object = "N") -> str:
    """Return this trainer's setting that makes a lever permanent; empty if the trainer has no such setting."""
    return _SETTINGS.get(str(trainer), {}).get(lever, "").format(workers)


def update_line(lever: str, optimizers: Sequence[str]) -> str:
    """Return the line that makes optimizers with these names update all parameters at once."""
    groups = f"(*{', *'.join(f'{name}.param_groups' for name in optimizers)})"
    source = f"{optimizers[0]}.param_groups" if len(optimizers) == 1 else groups
    return f"for group in {source}: group.update({_UPDATES[lever]})"


def loader_line(loader: Mapping[str, Any], **changed: object) -> str:
    """Return the line that creates a loader for the same samples with some arguments changed.

    The result is empty if the loader's name or arguments are not known.

    Parameters
    ----------
    loader : mapping
        Its ``name``, and the result of `perfnb.step.namespace.loader_facts`.
    **changed : object
        The changed arguments as text; ``None`` omits an argument.
    """
    name, words = loader.get("name"), loader.get("same")
    if not name or not words:
        return ""
    same = {word: f"{name}.{word}" for word in words if word in LOADER_WORDS}
    arguments = {word: value for word, value in (same | changed).items() if value is not None}
    written = ", ".join([f"{name}.dataset", *(f"{word}={value}" for word, value in arguments.items())])
    return f"{name} = torch.utils.data.DataLoader({written})"


def workers_line(loader: Mapping[str, Any], workers: int, pinned: bool) -> str:
    """Return the line that creates a loader for the same samples with this many workers; see `loader_line`.

    The line does not change persistent_workers, because a loader with persistent workers draws fewer random numbers,
    which changes the order of later epochs.
    """
    pin = {"pin_memory": True} if pinned else {}
    return loader_line(loader, num_workers=workers, **pin)


def is_own_line(line: object) -> bool:
    """Return whether a line is one that a finding could propose for plain names.

    The line may come from an edited file.
    """
    if not isinstance(line, str) or len(line) > _LONGEST or not line.isprintable():
        return False
    line = _IMPORTS.sub("", line, count=1)
    found = next(filter(None, (shape.fullmatch(line) for shape in _SHAPES)), None)
    if found is None:
        return False
    names = [name for group, text in found.groupdict().items() if text for name in _names_in(group, text)]
    return all(root_of(name) is not None for name in names)


def _names_in(group: str, text: str) -> list[str]:
    """Return the user's names in a part of a line: a single name, or those of the optimizers in `update_line`."""
    return [text] if group == "name" else [one.removesuffix(".param_groups") for one in text.split(", *")]


def _shape_of(lever: str, line: str) -> str:
    what = {"threads": r"\d{1,6}", "float32_precision": "high"}.get(lever, "(?P<name>.+)")
    first, *rest = re.escape(line).split(r"\{0\}")
    return first + "".join((what if place == 0 else "(?P=name)") + part for place, part in enumerate(rest))


_IMPORTS = re.compile(rf"import (?:{'|'.join(MODULES)})(?:, (?:{'|'.join(MODULES)}))*; ")
_ARGUMENT = "|".join(
    (
        *(rf"{word}=(?P=name)\.{word}" for word in LOADER_WORDS),
        r"num_workers=\d{1,6}",
        "pin_memory=True",
        r"sampler=(?P=name)\.batch_sampler",
        "batch_size=None",
    )
)
#: Maximum number of characters in a line, and patterns for all lines that a finding proposes.
_LONGEST = 5000
_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        "",
        *map(re.escape, (EXPANDABLE, RECORD_MORE)),
        *(_shape_of(lever, line) for lever, line in _LINES.items()),
        *(
            rf"for group in {source}: group\.update\({re.escape(how)}\)"
            for how in _UPDATES.values()
            for source in (r"(?P<name>.+)\.param_groups", r"\(\*(?P<names>.+\.param_groups)\)")
        ),
        r"(?P<name>.+) = torch\.nn\.parallel\.DistributedDataParallel\((?P=name)\.module(?:, bucket_cap_mb=\d{1,6})?\)",
        r"(?P<name>.+) = (?P=name)\.to\(torch\.bfloat16\)  # and its inputs",
        rf"(?P<name>.+) = torch\.utils\.data\.DataLoader\((?P=name)\.dataset(?:, (?:{_ARGUMENT}))*\)",
    )
)


def trial_line(call: object, lever: str, saves_memory: bool = False) -> tuple[str, str]:
    """Return instructions for trying a lever on the profiled step, and the code to run.

    Both are empty if there is no lever, or if the user's names are unknown, as in traces.

    Parameters
    ----------
    call : object
        How the profile was requested, as stored in the recording. For a magic, this is whether the ``magic`` was a
        ``cell`` or a ``line``; otherwise, it is the variables for ``step`` and ``batches``, and whether perfnb is
        ``imported`` under its own name.
    lever : str
    saves_memory : bool
        Whether the goal is to save memory instead of time.
    """
    if not lever or not isinstance(call, Mapping):
        return "", ""
    if (mark := {"cell": "%%", "line": "%"}.get(str(call.get("magic")))) is not None:
        words = f"To try it, run this in place of {mark}profile_step and its options:"
        return words, f"{mark}try_levers --levers {lever}{' --goal memory' * saves_memory}"
    step, batches = call.get("step"), call.get("batches")
    names = [step] if batches is None else [step, batches]
    if not all(isinstance(name, str) and name.isidentifier() and root_of(name) for name in names):
        return "", ""
    imports = "" if call.get("imported") is True else "import perfnb; "
    goal = ', goal="memory"' if saves_memory else ""
    return "To try it:", f'{imports}perfnb.try_levers({", ".join(map(str, names))}, levers=["{lever}"]{goal})'


def compiling(facts: Facts, layers: Sequence[str], lever: str = "compile") -> tuple[str, str]:
    """Return a caveat about compiling a layer's model, and the line that compiles it.

    The model is the one that the first of these layers belongs to. The line is empty if the model's variable is
    unknown, or if the line would have no effect, because torch.compile replaces only a model's own call.
    """
    if not facts.uses_torch:
        return "", ""
    modules = facts.recording.modules
    layer = layers[0] if layers else None
    root = facts.root(layer)
    compiled = modules.loc[modules["compiled"].fillna(False).astype(bool), "name"].astype(TEXT)
    if any(name == root or name.startswith(f"{root}.") for name in compiled):
        return " The model is already compiled, at least in part: look at the parts that are not.", ""
    if facts.gpu is not None and has_units(facts.recording, "torch.compile") is False:
        need = ".".join(map(str, NEEDS["torch.compile"]))
        return f" torch.compile does not work on this GPU: it needs compute capability {need} or higher.", ""
    name = facts.variable(layer)
    if name is None:
        return "", ""
    if not facts.is_called(layer):
        return (
            f" torch.compile({name}) alone would not compile anything, because the step does not call {name} itself, "
            "but one of its methods or layers: compile the modules that it does call in place (module.compile()).",
            "",
        )
    return "", lever_line(lever, name)


def has_units(recording: Recording, what: str) -> bool | None:
    """Return whether every GPU meets the given requirement of `NEEDS`; ``None`` if this is unknown."""
    known = [_capability(device) for device in _devices(recording)]
    return None if not known or None in known else all(one >= NEEDS[what] for one in known if one is not None)


def is_amd(recording: Recording) -> bool:
    """Return whether the work ran on an AMD GPU: its runtime's calls start with ``hip``."""
    names = recording.events["name"].cat.categories.astype(TEXT)
    devices = (str(device.get("name")) for device in _devices(recording))
    return bool(names.str.startswith("hip").any()) or any(_OTHERS.search(name) for name in devices)


def _devices(recording: Recording) -> list[Mapping[str, Any]]:
    """Return the facts about each GPU that was used, or about all known GPUs if the recording does not name any."""
    known, used = recording.meta.get("devices") or [], recording.meta.get("environment", {}).get("gpus") or ()
    return [device for device in known if device.get("name") in used] or known


def _capability(device: Mapping[str, Any]) -> Capability | None:
    """Return an NVIDIA GPU's compute capability; ``None`` for other vendors, which number theirs differently."""
    name, major, minor = str(device.get("name")), device.get("computeMajor"), device.get("computeMinor")
    if isinstance(major, int) and isinstance(minor, int) and _NVIDIA.search(name) and not _OTHERS.search(name):
        return major, minor
    return None
