"""`compile_for_profiling`: make code that torch compiles report its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from perfnb.files import usable, write_parts
from perfnb.recording.provenance import written


def compile_for_profiling(provenance: str | Path | None = None) -> AbstractContextManager[None]:
    """Make the layers inside subsequently compiled models and functions visible in profiles.

    Call it before the compiled code runs for the first time, because torch compiles only then. Each generated kernel
    then records when it runs, and torch records which operations and modules it fused into each kernel. Apart from
    that, torch generates the same code as without this call.

    The settings apply until the next profile is complete or, if you use this as a context manager, until the end of the
    block. Code that was compiled in the meantime continues to report its layers, even in later profiles.

    Parameters
    ----------
    provenance : str or Path, optional
        For ``with`` blocks only: a file that is written at the end of the block. If torch.profiler records a trace of
        the code that was compiled in the block, `load` can use this file to show its layers.

    Returns
    -------
    context manager
        Ends the settings at the end of a ``with`` block.

    Warns
    -----
    RuntimeWarning
        If this version of torch cannot report layers. Each compiled region is then a single layer.

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
    """Apply the settings within the block, then write all information about the compiled graphs."""
    from perfnb.step.compiler import compiled_graphs, profiling_block

    with profiling_block():
        yield
    write_parts([written(compiled_graphs())], path)
