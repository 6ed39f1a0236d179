"""The names that appear in traces: perfnb's spans, torch's names, and the event categories.

Any program may name a range ``pf_step#1`` or ``ProfilerStep#1``. A name is therefore recognised only in the categories
that perfnb or torch writes it to, and a number is read only if it fits into an int64.
"""

from __future__ import annotations

import re

#: perfnb's own spans; a number follows each ``#``: of the step, the module call, the operator, the memory mark.
STEP_SPAN, DATA_SPAN, LAYER_SPAN, OP_SPAN, MARK_SPAN = "pf_step#", "pf_data", "pf#", "pf_op#", "pf_mark#"
#: An event that perfnb adds for the part of a backward node, of a compiled region, that belongs to one layer.
PIECE = "pf_piece"
#: The start of the names of all of perfnb's spans.
OWN_PREFIX = "pf"
#: The category of perfnb's own spans: that of operators, which no user range gets.
SPAN_CATEGORY = "cpu_op"

#: The range around a step that torch's profiler writes when its ``step()`` is called; the number follows.
TORCH_STEP = "ProfilerStep#"
#: The engine's mark around a node of the backward pass, and the node that adds to a parameter's gradient.
BACKWARD_NODE, ACCUMULATE_GRAD = "autograd::engine::evaluate_function", "AccumulateGrad"
#: The names that torch.compile writes around a region that it compiled, and around a graph's call, before its key.
REGION, GRAPH_CALL = "Torch-Compiled Region: ", "## Call CompiledFxGraph "
#: A part of the names of calls that launch a CUDA graph: ``cudaGraphLaunch``, ``hipGraphLaunch``.
GRAPH_LAUNCH = "GraphLaunch"
#: torch.compile's search for the code whose guards hold, before a region.
REGION_LOOKUP = "TorchDynamo Cache Lookup"
#: Optimizers of torch that take fused=True, by the names of their classes, and those that do so only on a CPU.
FUSED, FUSED_ON_CPU = ("SGD", "Adam", "AdamW"), ("Adagrad",)
#: Ranges around ``next()`` of a loader, and around methods of an optimizer.
LOADER, OPTIMIZER = "enumerate(DataLoader)#", "Optimizer."

#: An operator that starts a collective, the one inside it that contains what it sends, and the backends whose
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
#: The address of an object at the end of the name of one of its methods; torch's export_stacks writes _ for each space.
_ADDRESS = re.compile(r"[ _]at[ _]0x[0-9a-fA-F]{1,16}(?=>$)")

#: torch's numbers of kinds of devices, by which a trace shows where memory changed (``Device Type``).
DEVICE_KINDS = {
    **{0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia"},
    20: "privateuseone",
}

#: Categories of events, the same for CUDA and ROCm.
OPS = ("cpu_op",)
RANGES = ("user_annotation",)
PYTHON_CALLS = ("python_function",)
#: Calls of the GPU's runtime, which launch work or wait for it.
CALLS = ("cuda_runtime", "cuda_driver")
KERNELS, COPIES = ("kernel",), ("gpu_memcpy",)
#: Categories that keep a device busy.
DEVICE_WORK = (*KERNELS, *COPIES, "gpu_memset")
#: User ranges as they appear on a device.
DEVICE_RANGES = ("gpu_user_annotation",)
SYNCHRONISATION = ("cuda_sync",)
#: Everything on a device's own tracks: its work, and ranges and synchronisation, which are not work.
DEVICE_EVENTS = (*DEVICE_WORK, *DEVICE_RANGES, *SYNCHRONISATION)
HOST_EVENTS = (*OPS, *RANGES, *CALLS, "overhead", *PYTHON_CALLS)

#: The categories for each sort of step mark, the most reliable one first.
STEP_MARKS = {STEP_SPAN: OPS, TORCH_STEP: (*RANGES, *OPS)}


#: Transformations in the names of JAX's ops, and scopes in those of TensorFlow's.
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
    """Return the number that follows a label, such as 12 in ``pf#12``; -1 if the name is not the label and a number."""
    if not name.startswith(label):
        return -1
    digits = name[len(label) :]
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS else -1


def step_number(name: str) -> int:
    """Return the step number from the name of a step mark, torch's or perfnb's; -1 for any other name."""
    return max(number_behind(label, name) for label in STEP_MARKS)


def own_word(name: str) -> str:
    """Return the name that frames use for perfnb's span around a step or a wait for data; empty for any other name."""
    return "step" if name.startswith(STEP_SPAN) else "data" if name.startswith(DATA_SPAN) else ""


def collective_kind(name: str) -> str:
    """Return the kind of collective that a name contains, such as ``allreduce``; empty if it contains none."""
    found = _COLLECTIVE.search(name)
    return found[0].lower().replace("_", "") if found else ""


def stepped_optimizer(name: str) -> str | None:
    """Return the class of the optimizer, such as ``SGD``, if a range is around its ``step()``."""
    match = _OPTIMIZER_STEP.fullmatch(name)
    return match[1] if match else None


def without_address(name: str) -> str:
    """Return a method's name without its object's address, which differs from call to call."""
    return _ADDRESS.sub("", name)
