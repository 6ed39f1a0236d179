"""Determine why changes do not apply to a step. Levers check these conditions, and findings record them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule
from torch.utils.data import DataLoader

#: The attribute that holds the original of a compiled model.
COMPILED_CHILD = "_orig_mod"

#: Containers whose parts may be the blocks of a model, such as the layers of a transformer.
BLOCKS = (nn.ModuleList, nn.Sequential)


def without_dtype(dtype: torch.dtype, parameters: Iterable[Tensor]) -> str:
    """Return the reason why lowering precision does not apply; empty if some parameter has the dtype."""
    has_it = any(parameter.dtype == dtype for parameter in parameters)
    return "" if has_it else f"the model is not in {str(dtype).removeprefix('torch.')}"


def wrapped_by_compiler(module: nn.Module) -> nn.Module | None:
    """Return the original of a module that ``torch.compile`` returned; ``None`` for any other module."""
    children = module._modules  # not an attribute: __getattr__ may raise what it likes
    return children[COMPILED_CHILD] if COMPILED_CHILD in children else None  # noqa: SIM401 (TorchScript has no get)


def is_compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` or TorchScript returned a module: one layer that hides those inside."""
    return wrapped_by_compiler(module) is not None or isinstance(module, ScriptModule)


def is_compiled_in_place(module: nn.Module) -> bool:
    """Return whether ``module.compile()`` was called, so that hooks see neither the module nor those inside."""
    return module._compiled_call_impl is not None


def is_compiled_function(function: Any) -> bool:
    """Return whether ``torch.compile`` created this object from a function.

    Functions that are excluded from compiling look the same.
    """
    own = vars(function)
    return "_torchdynamo_orig_callable" in own and not own.get("_torchdynamo_disable", False)


def compiled_already(modules: Iterable[nn.Module]) -> str:
    """Return the reason why torch.compile does not apply; empty if none of the modules is compiled."""
    compiled = any(is_compiled(module) or is_compiled_in_place(module) for module in modules)
    return "the model is compiled already" if compiled else ""


def without_blocks(modules: Iterable[nn.Module]) -> str:
    """Return the reason why recomputing blocks does not apply; empty if there is a list of several."""
    has_them = any(isinstance(module, BLOCKS) and len(module) > 1 for module in modules)
    return "" if has_them else "the model has no list of blocks (ModuleList or Sequential) to recompute"


def attention_of(model: nn.Module) -> Any:
    """Return the attention implementation that a Hugging Face model uses; ``None`` if it does not specify one."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


def takes_switch(model: nn.Module) -> bool:
    """Return whether this is a Hugging Face model, or a wrapper that passes on its attributes."""
    try:
        return hasattr(model, "set_attn_implementation")
    except Exception:  # of a __getattr__ that raises something other than AttributeError
        return False


def without_switch(models: Iterable[nn.Module]) -> str:
    """Return the reason why the attention implementation cannot be changed.

    The result is empty if it can be changed for at least one model.
    """
    switchable = [*filter(takes_switch, models)]
    if not switchable:
        return "only models of Hugging Face can be switched to fused attention from outside"
    fused = all(attention_of(model) == "sdpa" for model in switchable)
    return "attention is fused already" if fused else ""


def without_plain_loader(loader: Any, batches: Any) -> str:
    """Return the reason why loading batches in workers does not apply.

    The result is empty if the batches come from a plain DataLoader without workers.
    """
    if not isinstance(loader, DataLoader):
        return "no DataLoader feeds the step (pass it as batches, or as loader=)"
    if type(loader) is not DataLoader:
        return f"perfnb cannot copy a {type(loader).__name__}, which may keep its position"
    if loader.num_workers:
        return "the loader has workers already"
    return "" if batches is loader else "the step's batches do not come straight from the loader"


def refused_levers(called: Iterable[nn.Module], batches: Any) -> list[str]:
    """Return the levers of `perfnb.try_levers` that do not apply to a step, given its modules and its batches."""
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
