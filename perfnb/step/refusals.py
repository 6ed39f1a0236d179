"""Determine why changes cannot be applied to a step. Levers check these conditions, and findings record them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.utils.data import DataLoader

#: The attribute of a compiled model that refers to the original model.
COMPILED_CHILD = "_orig_mod"

#: Container classes whose items may be the blocks of a model, such as the layers of a transformer.
BLOCKS = (nn.ModuleList, nn.Sequential)


def without_dtype(dtype: torch.dtype, parameters: Iterable[Tensor]) -> str:
    """Return the reason why precision cannot be lowered, or an empty string if any parameter has the dtype."""
    has_it = any(parameter.dtype == dtype for parameter in parameters)
    return "" if has_it else f"the model is not in {str(dtype).removeprefix('torch.')}"


def wrapped_by_compiler(module: nn.Module) -> nn.Module | None:
    """Return the original of a module that was created by ``torch.compile``, or ``None`` for any other module."""
    children = module._modules  # attribute access is avoided because __getattr__ may raise any exception
    return children[COMPILED_CHILD] if COMPILED_CHILD in children else None  # noqa: SIM401 (TorchScript has no get)


def is_compiled(module: nn.Module) -> bool:
    """Check whether a module was created by ``torch.compile`` or TorchScript, which hides the layers inside it."""
    return wrapped_by_compiler(module) is not None or isinstance(module, ScriptModule)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Check whether ``module.compile()`` was called, which hides the module and its submodules from hooks."""
    return module._compiled_call_impl is not None


def is_compiled_function(function: Any) -> bool:
    """Check whether an object was created from a function by ``torch.compile``.

    Functions that are excluded from compilation look similar, but the result is false for them.
    """
    own = vars(function)
    return "_torchdynamo_orig_callable" in own and not own.get("_torchdynamo_disable", False)


def compiled_already(modules: Iterable[nn.Module]) -> str:
    """Return the reason why torch.compile cannot be applied, or an empty string if none of the modules is compiled."""
    compiled = any(is_compiled(module) or is_compiled_in_place(module) for module in modules)
    return "the model is already compiled" if compiled else ""


def without_blocks(modules: Iterable[nn.Module]) -> str:
    """Return the reason why blocks cannot be recomputed, or an empty string if a list of several blocks exists."""
    has_them = any(isinstance(module, BLOCKS) and len(module) > 1 for module in modules)
    return "" if has_them else "the model has no list of blocks (ModuleList or Sequential) to recompute"


def attention_of(model: nn.Module) -> Any:
    """Return the attention implementation that a Hugging Face model uses, or ``None`` if it does not specify one."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def takes_switch(model: nn.Module) -> bool:
    """Check whether this is a Hugging Face model or a wrapper that forwards the model's attributes."""
    try:
        return hasattr(model, "set_attn_implementation")
    except Exception:  # __getattr__ may raise exceptions other than AttributeError
        return False


def without_switch(models: Iterable[nn.Module]) -> str:
    """Return the reason why the attention implementation cannot be changed.

    The result is empty if it can be changed for at least one model.
    """
    switchable = [*filter(takes_switch, models)]
    if not switchable:
        return "perfnb can switch only Hugging Face models to fused attention"
    fused = all(attention_of(model) == "sdpa" for model in switchable)
    return "attention is already fused" if fused else ""


def without_plain_loader(loader: Any, batches: Any) -> str:
    """Return the reason why batches cannot be loaded in workers.

    The result is empty if the batches come from a plain DataLoader without workers.
    """
    if not isinstance(loader, DataLoader):
        return "no DataLoader feeds the step (pass it as batches, or as loader=)"
    if type(loader) is not DataLoader:
        return f"perfnb cannot copy a {type(loader).__name__}, because it may keep track of its position"
    if loader.num_workers:
        return "the loader already has workers"
    return "" if batches is loader else "the step's batches do not come directly from the loader"


def refused_levers(called: Iterable[nn.Module], batches: Any) -> list[str]:
    """Return the levers of `perfnb.try_levers` that do not apply to a step with the given modules and batches."""
    models = list(called)
    modules = list({id(part): part for model in models for part in model.modules()}.values())
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    compiled = compiled_already(modules) if modules else "the step calls no model"
    reasons = {
        "attention": without_switch(models),
        "autocast": without_dtype(torch.float32, parameters),
        "checkpointing": without_blocks(modules),
        **dict.fromkeys(("compile", "compile_max_autotune", "compile_reduce_overhead"), compiled),
        "float32": without_dtype(torch.float64, parameters),
        "loader_workers": without_plain_loader(batches, batches),
    }
    return [lever for lever, reason in reasons.items() if reason]
