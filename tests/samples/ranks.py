"""Documents of `ranks`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import perfnb
from perfnb.draw.document import Document
from perfnb.ranks.ranks import Ranks
from tests.ranks.rank_traces import rank_trace, written
from tests.ranks.test_host_ranks import job
from tests.samples import HOSTILE
from tests.written_traces import Written


def _of_gpus(*traces: Written) -> Document:
    with TemporaryDirectory() as folder:
        ranks = perfnb.load(written(Path(folder), list(traces)))
        assert isinstance(ranks, Ranks)
        return ranks._document()


def _of_hosts() -> Document:
    return job((0, 2000, 100))._document()


def _hostile() -> Document:
    gpus = [{"deviceProperties": [{"id": 0, "name": f"{HOSTILE}{rank}"}]} for rank in range(2)]
    return _of_gpus(*(rank_trace(0, lost=tuple(range(12)), **gpu) for gpu in gpus))


DOCUMENTS: dict[str, Callable[[], Document]] = {
    "ranks with a straggler": lambda: _of_gpus(rank_trace(0), rank_trace(150, clock=2_500.0), rank_trace(20)),
    "ranks of hosts": _of_hosts,
    "ranks of different jobs": _hostile,
    "ranks of which nothing is known": lambda: _of_gpus(*([Written().step(0, 0, 90).op("aten::mm", 0, 10)] * 2)),
}
