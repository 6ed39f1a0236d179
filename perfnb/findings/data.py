"""The input pipeline: the step waits for its batch."""

from __future__ import annotations

import math

import numpy as np

from perfnb.findings.facts import Facts, without_longest
from perfnb.findings.finding import Confidence, Finding, Row, part, time

#: Share of the step below which a wait is not worth a word, and milliseconds below which it is none.
_WORTH, _LEAST_MS = 0.05, 0.05


def input_pipeline(facts: Facts) -> list[Finding]:
    """Waiting for data: measured in the timed pass; on a GPU only as far as the device was idle meanwhile."""
    waited = facts.phases_ms["data"]
    # One step that other work on the machine held up is no pipeline: without the longest waits there must be some left.
    often = _without_longest(facts) if facts.live and facts.waits_ms.any() else waited
    if min(waited, often) < _LEAST_MS or facts.share(min(waited, often)) < _WORTH:
        return []
    bound, hidden = waited, ""
    if facts.gpu is not None:
        bound = min(bound, facts.gpu.held_ms("data") if not facts.live else facts.gpu.idle_ms)
        hidden = f"; the GPU was idle for {time(bound)} of it"
        if facts.share(bound) < _WORTH:
            return []
    measured = facts.live and facts.waits_ms.any()
    source = f"mean of {len(facts.waits_ms)} timed steps" if measured else "of the traced steps"
    confidence: Confidence = "high" if measured and facts.gpu is None else "medium"
    lever, code = _lever(facts, waited)
    return [
        Finding(
            "input pipeline",
            f"The step waits {time(waited)} for its batch, {part(facts.share(waited))} of {facts.step_words} "
            f"({source}){hidden}.{_setting(facts)}",
            bound,
            lever,
            code,
            confidence,
            "The wait for each batch was timed without any instrument."
            if measured
            else "The wait was seen in the trace, beside the cost of tracing.",
            "Which part of the pipeline is slow: reading, decoding or transforms. Workers that take the cores from the "
            "step make its other phases longer too.",
            (Row("phase", "data"),),
        )
    ]


def _without_longest(facts: Facts) -> float:
    """The mean wait without the longest of every fifty; the median where batches are made already."""
    if facts.loader.get("class") in ("list", "tuple"):
        return float(np.median(facts.waits_ms))
    return without_longest(facts.waits_ms)


def _setting(facts: Facts) -> str:
    workers = facts.loader.get("num_workers")
    if not isinstance(workers, int):
        return ""
    name = facts.loader.get("name") or "The loader"
    return f" {name} has {'no workers: batches are made in the step itself' if workers == 0 else _workers(workers)}."


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _lever(facts: Facts, waited: float) -> tuple[str, str]:
    kind, workers = facts.loader.get("class"), facts.loader.get("num_workers")
    name = facts.loader.get("name")
    rest = max(facts.step_ms - waited, 1e-3)
    if not isinstance(workers, int):
        if facts.live and kind not in (None, "list", "tuple"):
            return (
                "Make batches in other processes while the step computes: feed it from a torch.utils.data.DataLoader "
                "with workers (num_workers=2, persistent_workers=True).",
                "",
            )
        return (
            "Make batches ahead in other processes (num_workers and prefetch_factor of torch's DataLoader), or make "
            "them cheaper: cache, vectorise.",
            "",
        )
    if facts.loader.get("dataset") == "TensorDataset" and _batched(facts) and not _collates(facts):
        return (
            "The samples lie in memory already, and each is taken by itself: take a batch with one index. The batches "
            "are drawn as before.",
            f"{name} = torch.utils.data.DataLoader({name}.dataset, sampler={name}.batch_sampler, batch_size=None)"
            if name
            else "",
        )
    # With n workers a batch takes n times as long to make as it takes to come.
    making = waited if workers == 0 else workers * facts.step_ms
    needed = math.ceil(making / rest)
    wanted = max(workers + 1, needed)
    cores = facts.cores
    takes = f"it takes about {time(making)} to make and {time(rest)} to use, so that about {_workers(needed)} "
    if cores is not None and workers > cores and wanted > cores:
        wanted = max(1, int(cores))
        lever = (
            f"Make a batch cheaper: {_workers(workers)} share {cores:g} cores, and more would not help. Cache what is "
            "read or decoded; vectorise. Fewer workers may even be faster, where making batches is work."
        )
    elif cores is not None and wanted > cores:
        many, wanted = _workers(needed), max(workers + 1, int(cores))
        lever = (
            f"Make a batch cheaper (cache what is read or decoded; vectorise), and use {_workers(wanted)}: {takes}"
            f"would be needed, and there are {cores:g} cores. Where making a batch is waiting, for a disk or a "
            f"network, and not work, take {many}."
        )
    else:
        lever = (
            f"Use about {_workers(wanted)}: a batch takes about {time(making)} to make and {time(rest)} to use. Where "
            "making it is work and not waiting, they need cores of their own; cheaper transforms and a cache help then."
        )
    if facts.loader.get("iterable"):
        lever += " Its data set must share its samples among them: torch.utils.data.get_worker_info() tells which."
    return lever, _with_workers(facts, name, wanted) if name else ""


def _batched(facts: Facts) -> bool:
    """Whether the loader has a sampler of batches that another may use."""
    return facts.loader.get("batch_size") is not None and facts.loader.get("iterable") is False


def _collates(facts: Facts) -> bool:
    return bool(facts.loader.get("collates"))


def _with_workers(facts: Facts, name: str, count: int) -> str:
    """The same loader with other workers: it takes the same samples, in the same way."""
    known, same = facts.loader, [f"{name}.dataset"]
    if _batched(facts):
        same += [f"batch_sampler={name}.batch_sampler"]
    else:
        same += [f"batch_size={known.get('batch_size')!r}"]
        same += ["drop_last=True"] if known.get("drop_last") else []
    same += [f"collate_fn={name}.collate_fn"] if _collates(facts) else []
    same += ["pin_memory=True"] if facts.gpu is not None or known.get("pin_memory") else []
    return f"{name} = torch.utils.data.DataLoader({', '.join(same)}, num_workers={count}, persistent_workers=True)"
