"""Documents of `flame`."""

from __future__ import annotations

import json
import marshal
import tempfile
from collections.abc import Callable
from pathlib import Path

from perfnb.draw.document import Document
from perfnb.flame.host_profile import HostProfile
from perfnb.flame.step_stacks import step_stacks
from perfnb.flame.view import stacks_document
from perfnb.stacks.formats import read_record
from tests.findings.test_host_time import METRIC, sampled
from tests.recordings import ByHand
from tests.samples import HOSTILE
from tests.stacks.test_host_profiles import COLLAPSED, SPEEDSCOPE, statistics


def _read(content: str | bytes) -> HostProfile:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return HostProfile(read_record(path))


def _hostile() -> HostProfile:
    return _read(marshal.dumps({(HOSTILE, 1, HOSTILE): (1, 1, 1.0, 1.0, {})}))


def _step() -> Document:
    found = step_stacks(sampled(ByHand().step(0, 1000).recording(), *METRIC))
    assert found is not None
    return stacks_document(found)


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "collapsed stacks": lambda: _read(COLLAPSED)._document(),
    "cProfile": lambda: _read(statistics())._document(),
    "hostile host profile": lambda: _hostile()._document(),
    "empty host profile": lambda: _read(marshal.dumps({}))._document(),
    "host profiles compared": lambda: _read(COLLAPSED).compare(_read(json.dumps(SPEEDSCOPE)))._document(),
    "host profiles of one unit compared": lambda: _read(statistics()).compare(_hostile())._document(),
    "flame graph": _step,
}
