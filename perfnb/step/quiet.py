"""torch's own messages about profiling, kept out of the notebook's output."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

_LOG_LEVEL = "KINETO_LOG_LEVEL"
_STDERR = 2
#: Each time this many blocks from before the session were freed, torch's CPU allocator says so.
_FREES_PER_WARNING = 1000
_WARNING = b"allocated before the profiling started"


@contextmanager
def quiet_kineto() -> Iterator[None]:
    """Keep Kineto's log lines out of the notebook's output; a level that the user set stays."""
    before = os.environ.get(_LOG_LEVEL)
    if before is None:
        os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


class AllocatorWarning:
    """Spends the CPU allocator's warning about blocks that it did not see being made.

    Blocks from before a session that records memory are freed in every such session, and the first of each thousand
    makes a line on standard error. Blocks made before the session are freed in it, unseen, until that line was
    written: a thousand frees of the user's step are then silent. The other blocks must live as long as the session.
    """

    def __init__(self) -> None:
        # No tensors: those would be seen among the user's.
        self._blocks = [torch.UntypedStorage(4) for _ in range(_FREES_PER_WARNING)]

    def spend(self) -> None:
        """Free the blocks; call this when the session has begun."""
        try:
            with tempfile.TemporaryFile() as sink:
                self._spend_into(sink.fileno())
                sink.seek(0)
                other = b"".join(line for line in sink if _WARNING not in line)
        except OSError:  # no standard error, or nowhere to write: then the line is shown
            return
        if other:
            os.write(_STDERR, other)

    def _spend_into(self, sink: int) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        kept = os.dup(_STDERR)
        try:
            os.dup2(sink, _STDERR)
            while self._blocks and os.fstat(sink).st_size == 0:
                self._blocks.pop()
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
