"""`compile_for_profiling`: have code that torch compiles report its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from perfnb.files import usable, write_parts
from perfnb.recording.provenance import written


def compile_for_profiling(provenance: str | Path | None = None) -> AbstractContextManager[None]:
    """Make models and functions that are compiled from now on show their layers in a profile.

    Call it before the compiled code runs for the first time, because torch compiles only then. Each generated kernel
    then records when it runs, and torch remembers the operations and modules that it fused into each kernel. Otherwise
    the code is the same that torch would compile without this call.

    The settings hold until the next profile has been made, or, as a context manager, until the end of its block. Code
    that was compiled meanwhile keeps reporting its layers, in later profiles too.

    Parameters
    ----------
    provenance : str or Path, optional
        Only for a ``with`` block: a file to write at its end. `load` then shows the layers in a trace that
        torch.profiler records of the code that was compiled in the block.

    Returns
    -------
    context manager
        Ends the settings at the end of a ``with`` block.

    Warns
    -----
    RuntimeWarning
        If this version of torch cannot report layers: each region is then one layer.

    Examples
    --------
    >>> perfnb.compile_for_profiling()  # doctest: +SKIP
    >>> compiled = torch.compile(model)  # doctest: +SKIP
    >>> p = perfnb.profile_step(step, loader)  # doctest: +SKIP
    """
    import torch

    from perfnb.step.compiler import begin_for_profiling, missing_names, profiling_block

    if missing := missing_names():
        warnings.warn(
            f"torch {torch.__version__} does not report layers of compiled kernels (it has no {missing[0]}), so each "
            "compiled region will be one layer.",
            RuntimeWarning,
            stacklevel=2,
        )
    if provenance is not None:
        return _writing(usable(provenance))
    begin_for_profiling()
    return profiling_block()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Keep the settings in force in the block, and afterwards write what is known of all compiled graphs."""
    from perfnb.step.compiler import compiled_graphs, profiling_block

    with profiling_block():
        yield
    write_parts([written(compiled_graphs())], path)
