"""Provide `compile_for_profiling`, which makes code that torch compiles report its layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from perfnb.files import usable, write_parts
from perfnb.recording.provenance import written


def compile_for_profiling(provenance: str | Path | None = None) -> AbstractContextManager[None]:
    """Make the layers inside subsequently compiled models and functions visible in profiles.

    Call this function before the compiled code runs for the first time, because that is when torch compiles it. Each
    generated kernel then records when it runs, and torch records which operations and modules it fused into each
    kernel. Apart from that, torch generates the same code as it would without this call.

    The settings apply until the next profile is complete or, if you use this function as a context manager, until the
    end of the block. Code that was compiled in the meantime continues to report its layers, even in later profiles.

    Parameters
    ----------
    provenance : str or Path, optional
        A file that is written at the end of a ``with`` block. If torch.profiler records a trace of the code that was
        compiled in the block, `load` can use this file to show its layers. This is only supported in ``with`` blocks.

    Returns
    -------
    context manager
        A context manager that restores the previous settings at the end of a ``with`` block.

    Warns
    -----
    RuntimeWarning
        If this version of torch cannot report layers. In that case, each compiled region is a single layer.

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
            "compiled region will be a single layer.",
            RuntimeWarning,
            stacklevel=2,
        )
    if provenance is not None:
        return _writing(usable(provenance))
    begin_for_profiling()
    return profiling_block()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Apply the settings inside the block, then write all information about the compiled graphs to a file."""
    from perfnb.step.compiler import compiled_graphs, profiling_block

    with profiling_block():
        yield
    write_parts([written(compiled_graphs())], path)
