"""Define the names that appear in traces: perfnb's spans, torch's own names, and the event categories.

Any program may use ``pf_step#1`` or ``ProfilerStep#1`` as the name of a range. A name is therefore recognised only in
the categories that perfnb or torch uses for it, and a number is read only if it fits into an int64.
"""

from __future__ import annotations

import re

#: perfnb's own spans. The number after each ``#`` identifies the step, module call, operator or memory mark.
STEP_SPAN, DATA_SPAN, LAYER_SPAN, OP_SPAN, MARK_SPAN = "pf_step#", "pf_data", "pf#", "pf_op#", "pf_mark#"
#: An event that perfnb adds for one layer's part of the backward node of a compiled region.
PIECE = "pf_piece"
#: The prefix of all of perfnb's spans.
OWN_PREFIX = "pf"
#: The category of perfnb's own spans. Operators have the same category, but ranges from user code never do.
SPAN_CATEGORY = "cpu_op"

#: The range around a step that torch's profiler writes when its ``step()`` is called; the number follows.
TORCH_STEP = "ProfilerStep#"
#: The autograd engine's range around a node of the backward pass, and the node that adds to a parameter's gradient.
BACKWARD_NODE, ACCUMULATE_GRAD = "autograd::engine::evaluate_function", "AccumulateGrad"
#: The prefixes of the ranges that torch.compile records around a compiled region and around a call to a graph. The key
#: of the region or graph follows.
REGION, GRAPH_CALL = "Torch-Compiled Region: ", "## Call CompiledFxGraph "
#: Part of the name of every call that launches a CUDA graph: ``cudaGraphLaunch``, ``hipGraphLaunch``.
GRAPH_LAUNCH = "GraphLaunch"
#: The range where torch.compile looks up the code whose guards match, before a region.
REGION_LOOKUP = "TorchDynamo Cache Lookup"
#: The class names of torch's optimizers that accept fused=True, and of those that accept it only on a CPU.
FUSED, FUSED_ON_CPU = ("SGD", "Adam", "AdamW"), ("Adagrad",)
#: Ranges around a loader's ``next()``, and around an optimizer's methods.
LOADER, OPTIMIZER = "enumerate(DataLoader)#", "Optimizer."

#: An operator that starts a collective, the operator inside it that describes the data it sends, and the backends whose
#: collectives the host runs itself, in ranges such as ``gloo:all_reduce``.
COLLECTIVE_OP = re.compile(r"c10d(?:_functional)?::|_c10d_functional::")
COLLECTIVE_PARAMETERS = "record_param_comms"
HOST_BACKENDS = ("gloo", "mpi", "ucc")
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|barrier|scatter|gather|reduce|send|recv",
    re.IGNORECASE,
)

_OPTIMIZER_STEP = re.compile(r"Optimizer\.step#(\w+)\.step")
_MOST_DIGITS = 18
#: The address of an object at the end of a method's name. torch's export_stacks replaces each space with an underscore.
_ADDRESS = re.compile(r"[ _]at[ _]0x[0-9a-fA-F]{1,16}(?=>$)")

#: torch's numbers for the types of devices. A trace uses them (``Device Type``) to show where memory changed.
DEVICE_KINDS = {
    **{0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"},
    20: "privateuseone",
}

#: Event categories, which are the same for CUDA and ROCm.
OPS = ("cpu_op",)
RANGES = ("user_annotation",)
PYTHON_CALLS = ("python_function",)
#: Calls to the GPU runtime, which launch work or wait for it.
CALLS = ("cuda_runtime", "cuda_driver")
KERNELS, COPIES = ("kernel",), ("gpu_memcpy",)
#: The categories of events during which a device is busy.
DEVICE_WORK = (*KERNELS, *COPIES, "gpu_memset")
#: The category of user ranges on a device.
DEVICE_RANGES = ("gpu_user_annotation",)
SYNCHRONISATION = ("cuda_sync",)
#: All categories on a device's own tracks. Ranges and synchronisation are among them but do not count as work.
DEVICE_EVENTS = (*DEVICE_WORK, *DEVICE_RANGES, *SYNCHRONISATION)
HOST_EVENTS = (*OPS, *RANGES, *CALLS, "overhead", *PYTHON_CALLS)

#: The categories for each sort of step mark, the most reliable one first.
STEP_MARKS = {STEP_SPAN: OPS, TORCH_STEP: (*RANGES, *OPS)}


#: Transformations in the names of JAX ops, and scopes in the names of TensorFlow ops.
_JAX_BACKWARD, _JAX_FORWARD = re.compile(r"(?:^|[/(])transpose\([\w/(]*jvp\("), re.compile(r"(?:^|[/(])jvp\(")
_TENSORFLOW_BACKWARD = ("gradient_tape/", "gradients/")


def told_direction(name: str) -> str:
    """Return ``forward`` or ``backward`` if the name of a JAX or TensorFlow op contains that word.

    The result is empty for any other name.
    """
    if name.startswith(_TENSORFLOW_BACKWARD):
        return "backward"
    if "(" not in name:
        return ""
    return "backward" if _JAX_BACKWARD.search(name) else "forward" if _JAX_FORWARD.search(name) else ""


def number_behind(label: str, name: str) -> int:
    """Return the number after a label, for example 12 in ``pf#12``, or -1 if the name is not the label and a number."""
    if not name.startswith(label):
        return -1
    digits = name[len(label) :]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else -1


def step_number(name: str) -> int:
    """Return the step number in the name of a step mark, from torch or perfnb, or -1 for any other name."""
    return max(number_behind(label, name) for label in STEP_MARKS)


def own_word(name: str) -> str:
    """Return the display name of perfnb's span around a step or a wait for data, or ``""`` for any other name."""
    return "step" if name.startswith(STEP_SPAN) else "data" if name.startswith(DATA_SPAN) else ""


def collective_kind(name: str) -> str:
    """Return the kind of collective in a name, for example ``allreduce``, or an empty string if there is none."""
    found = _COLLECTIVE.search(name)
    return found[0].lower().replace("_", "") if found else ""


def stepped_optimizer(name: str) -> str | None:
    """Return the optimizer's class name, for example ``SGD``, if the range is an optimizer's ``step()``."""
    match = _OPTIMIZER_STEP.fullmatch(name)
    return match[1] if match else None


def without_address(name: str) -> str:
    """Remove the object's address from a method's name, because it differs from run to run."""
    return _ADDRESS.sub("", name)
