"""perfnb: where one PyTorch step's time goes, layer by layer, forward and backward, in a notebook.

``%load_ext perfnb`` brings the magics; `profile_step` does the same from a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfnb.errors import PerfnbError

if TYPE_CHECKING:
    from perfnb.estimate import MemoryEstimate, estimate_memory
    from perfnb.profile import Profile, load, profile_step
    from perfnb.snapshot import MemorySnapshot

__version__ = "0.1.0"
__all__ = ["MemoryEstimate", "MemorySnapshot", "PerfnbError", "Profile", "estimate_memory", "load", "profile_step"]


def __getattr__(name: str) -> Any:
    # pandas and the rest load when they are first needed.
    if name in ("Profile", "load", "profile_step"):
        from perfnb import profile

        return getattr(profile, name)
    if name in ("MemoryEstimate", "estimate_memory"):
        from perfnb import estimate

        return getattr(estimate, name)
    if name == "MemorySnapshot":
        from perfnb import snapshot

        return snapshot.MemorySnapshot
    raise AttributeError(f"module 'perfnb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext perfnb`` calls."""
    from perfnb.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """What ``%unload_ext perfnb`` calls."""
    from perfnb.magics import unregister

    unregister(shell)
