"""Whether and how a model can be compiled: torch.compile replaces a model's own call, and nothing else."""

from __future__ import annotations

from perfnb.findings.facts import Facts
from perfnb.findings.hardware import NEEDS, has_units
from perfnb.recording.text import TEXT


def compiling(facts: Facts, layers: list[str] | tuple[str, ...], mode: str = "") -> tuple[str, str]:
    """What to know before compiling the model that the first of some layers belongs to, and the line that compiles it.

    The line is empty where it would not apply, or where no variable is known to hold the model.
    """
    modules = facts.recording.modules
    layer = layers[0] if layers else None
    root = facts.root(layer)
    compiled = modules.loc[modules["compiled"].fillna(False).astype(bool), "name"].astype(TEXT)
    if any(name == root or name.startswith(f"{root}.") for name in compiled):
        return " The model is compiled already, at least in part: look at what is left outside.", ""
    if facts.gpu is not None and has_units(facts.recording, "torch.compile") is False:
        need = ".".join(map(str, NEEDS["torch.compile"]))
        return f" torch.compile does not work on this GPU: it needs compute capability {need}.", ""
    name = facts.variable(layer)
    if name is None:
        return "", ""
    if not facts.is_called(layer):
        return (
            f" torch.compile({name}) alone would compile nothing, because the step does not call {name} itself but a "
            "method of it or layers inside it: compile in place the modules that it does call (module.compile()).",
            "",
        )
    how = f', mode="{mode}"' if mode else ""
    return "", f"{name} = torch.compile({name}{how})"
