"""The backends, which are different ways to serve a model.

Each backend is an object in this module. To add a backend, define an object here and add it to `BACKENDS`.
"""

from __future__ import annotations

import copy
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from perfnb.bench.rounds import mapped


class ModelCall(NamedTuple):
    """The positional and keyword arguments of a call to a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class RefusedError(Exception):
    """Raised while a backend is being built if it turns out that it cannot be applied to the model."""


class ReadyBackend(NamedTuple):
    """A backend that is ready to serve."""

    #: Takes the same arguments as the model, and returns the same type of result.
    run: Callable[..., Any]
    #: The size of its file in bytes, or of its weights when torch saves them.
    size_bytes: int
    #: Whether its memory is allocated by torch.
    by_torch: bool = True


@dataclass(frozen=True)
class Backend:
    """A way to run a model."""

    name: str
    #: Returns the reason why it cannot run a model, or an empty string if it can.
    refuses: Callable[[nn.Module, ModelCall], str]
    #: Builds it from a model in evaluation mode, which must not be changed, and an empty folder.
    make: Callable[[nn.Module, ModelCall, Path], ReadyBackend]
    #: The dtype that it deliberately computes in, if this is lower than the model's own dtype.
    lowers: str = ""
    #: Whether it may draw random numbers in a different order.
    reorders: bool = False


def call_of(example: Any) -> ModelCall:
    """Return the arguments of a call.

    A mapping is interpreted as keyword arguments, and a tuple or list as positional arguments. Any other value is
    passed as the only argument.
    """
    if isinstance(example, Mapping):
        return ModelCall((), {str(name): value for name, value in example.items()})
    return ModelCall(tuple(example), {}) if isinstance(example, (tuple, list)) else ModelCall((example,), {})


def _any(model: nn.Module, call: ModelCall) -> str:
    return ""


def _missing(*packages: str) -> str:
    """Return a message about missing packages, or an empty string if everything is installed."""
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"not installed: pip install {' '.join(lacking)}" if lacking else ""


def tensors_of(call: ModelCall) -> list[Tensor]:
    """Return the tensors in the arguments, in order."""
    return [leaf for leaf in tree_leaves(tuple(call)) if isinstance(leaf, Tensor)]


def _only_on_cpu(model: nn.Module, call: ModelCall) -> str:
    tensors = [*model.parameters(), *model.buffers(), *tensors_of(call)]
    kind = next((tensor.device.type for tensor in tensors), "cpu")
    return "" if kind == "cpu" else f"the model is on {kind}, and perfnb runs this backend only on the CPU"


def _has(model: nn.Module, *kinds: type[nn.Module]) -> bool:
    return any(isinstance(module, kinds) for module in model.modules())


def saved_bytes(model: nn.Module) -> int:
    """Return the number of bytes that torch needs to save a model's state."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return file.tell()


def _served(
    model: Callable[..., Any],
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """Return a function that calls a model as in serving, which means in inference mode.

    `convert` is applied to each input and output tensor.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode():
            if before is not None:
                args, kwargs = tree_map(before, (args, kwargs))
            result = model(*args, **kwargs)
            return result if after is None else mapped(after, result)

    return run


# Torch itself


def _eager(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    return ReadyBackend(_served(model), saved_bytes(model))


def _compiled(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    return ReadyBackend(_served(torch.compile(model)), saved_bytes(model))


def _without_float32(model: nn.Module, call: ModelCall) -> str:
    kinds = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return "" if torch.float32 in kinds else "the model has no parameters in float32"


def _bf16(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    lower = copy.deepcopy(model).to(torch.bfloat16)

    def to(dtype: torch.dtype) -> Callable[[Any], Any]:
        return lambda value: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return ReadyBackend(_served(lower, to(torch.bfloat16), to(torch.float32)), saved_bytes(lower))


def _without_images(model: nn.Module, call: ModelCall) -> str:
    return "" if _has(model, nn.Conv2d, nn.ConvTranspose2d) else "the model has no two-dimensional convolution"


def _channels_last(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    laid = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def before(value: Any) -> Any:
        images = isinstance(value, Tensor) and value.dim() == 4
        return value.contiguous(memory_format=torch.channels_last) if images else value

    return ReadyBackend(_served(laid, before), saved_bytes(laid))


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _without_norms(model: nn.Module, call: ModelCall) -> str:
    return "" if _has(model, *_NORMS) else "the model has no batch normalisation"


def _folded(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    from torch.fx.experimental.optimization import fuse

    fused = fuse(model)
    norms, left = (sum(isinstance(module, _NORMS) for module in one.modules()) for one in (model, fused))
    if left == norms:
        raise RefusedError("no batch normalisation follows a convolution directly")
    return ReadyBackend(_served(fused), saved_bytes(fused))


# Integers


def _without_linear(model: nn.Module, call: ModelCall) -> str:
    if not _has(model, nn.Linear):
        return "the model has no linear layer, and no other layers are quantised"
    return _missing("torchao")


def _int8(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    lower = copy.deepcopy(model)
    quantize_(lower, Int8DynamicActivationInt8WeightConfig())
    # Without compilation, integers are converted to a wider type before they are multiplied.
    return ReadyBackend(_served(torch.compile(lower)), saved_bytes(lower))


# Other engines


def _like(model: nn.Module, call: ModelCall) -> Callable[[list[Any]], Any]:
    """Return a function that arranges an engine's list of outputs in the same structure as the model's result.

    Raises
    ------
    RefusedError
        By the returned function, if the number of outputs differs from the model's.
    """
    leaves, spec = tree_flatten(_served(model)(*call.args, **call.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def rebuilt(outputs: list[Any]) -> Any:
        if len(outputs) != len(places):
            raise RefusedError(f"it returns {len(outputs)} tensors, but the model returns {len(places)}")
        filled = list(leaves)
        for place, output in zip(places, outputs, strict=True):
            filled[place] = torch.from_numpy(output)
        return tree_unflatten(filled, spec)

    return rebuilt


def _fed(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's inputs by name.

    Keyword arguments are matched by name, and positional arguments by order.
    """
    tensors = tensors_of(ModelCall(args, dict(kwargs)))
    if len(tensors) != len(names):
        raise RefusedError(f"it accepts {len(names)} tensors, but the model is called with {len(tensors)}")
    if kwargs and (args or not set(names) <= kwargs.keys()):
        raise RefusedError(f"its inputs ({', '.join(names)}) differ from the model's keyword arguments")
    if kwargs:
        tensors = [kwargs[name] for name in names]
    return {name: tensor.numpy(force=True) for name, tensor in zip(names, tensors, strict=True)}


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


_PROVIDER = "CPUExecutionProvider"


def _onnxruntime(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    import onnxruntime

    path = folder / "model.onnx"
    torch.onnx.export(copy.deepcopy(model), call.args, path, kwargs=call.kwargs or None, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # Otherwise its threads would keep spinning while the next backend runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=[_PROVIDER])
    if session.get_providers() != [_PROVIDER]:
        raise RefusedError(f"it runs on {', '.join(session.get_providers())} instead of {_PROVIDER}")
    names, rebuilt = [each.name for each in session.get_inputs()], _like(model, call)

    def run(*args: Any, **kwargs: Any) -> Any:
        return rebuilt(session.run(None, _fed(names, args, kwargs)))

    return ReadyBackend(run, _size_of(folder), by_torch=False)


def _openvino(model: nn.Module, call: ModelCall, folder: Path) -> ReadyBackend:
    import openvino

    example = call.kwargs or (call.args if len(call.args) > 1 else call.args[0])
    converted = openvino.convert_model(copy.deepcopy(model), example_input=example)
    openvino.save_model(converted, folder / "model.xml", compress_to_fp16=False)
    options = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(converted, "CPU", options)
    names = [next(iter(call.kwargs.keys() & each.names), each.any_name) for each in compiled.inputs]
    rebuilt = _like(model, call)

    def run(*args: Any, **kwargs: Any) -> Any:
        found = compiled(_fed(names, args, kwargs))
        return rebuilt([found[place].copy() for place in range(len(compiled.outputs))])

    return ReadyBackend(run, _size_of(folder), by_torch=False)


def _without(*packages: str) -> Callable[[nn.Module, ModelCall], str]:
    return lambda model, call: _missing(*packages) or _only_on_cpu(model, call)


#: The unmodified model in inference mode, which is the baseline for all other backends.
EAGER = Backend("eager", _any, _eager)
BACKENDS = (
    EAGER,
    Backend("compile", _any, _compiled, reorders=True),
    Backend("bf16", _without_float32, _bf16, lowers="bfloat16"),
    Backend("onnxruntime", _without("onnx", "onnxscript", "onnxruntime"), _onnxruntime, reorders=True),
    Backend("int8", _without_linear, _int8, lowers="int8", reorders=True),
    Backend("channels_last", _without_images, _channels_last),
    Backend("folded", _without_norms, _folded),
    Backend("openvino", _without("openvino"), _openvino, reorders=True),
)


def by_name() -> dict[str, Backend]:
    """Return all backends by name."""
    return {backend.name: backend for backend in BACKENDS}
