"""Input-bound steps: the step waits for its batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from perfnb import quantities as fmt
from perfnb.findings.facts import Facts, without_longest
from perfnb.findings.finding import Finding, rows, rule

#: Least share of the step, and least milliseconds, of a wait worth reporting.
_WORTH, _LEAST_MS = 0.05, 0.05


@rule("input pipeline", "Input-bound", "removing the wait for data", timed_only=True)
def input_pipeline(facts: Facts) -> Iterator[Finding]:
    """The wait for data, from the timed pass; with a GPU, no more of it than the GPU was idle."""
    waited = facts.phases_ms["data"]
    measured = facts.live and bool(facts.waits_ms.any())
    # One step held up by other work is no slow pipeline: some wait must be left without the longest ones.
    often = _without_longest(facts) if measured else waited
    if min(waited, often) < _LEAST_MS or facts.share(min(waited, often)) < _WORTH:
        return
    bound, hidden = waited, ""
    if facts.gpu is not None:
        bound = min(bound, facts.gpu.held_ms("data") if not facts.live else facts.gpu.idle_ms)
        hidden = f"; the GPU was idle for {fmt.duration(bound)} of that"
        if facts.share(bound) < _WORTH:
            return
    source = f"mean of {len(facts.waits_ms)} timed steps" if measured else "in the traced steps"
    lever, code = _lever(facts, waited)
    yield Finding(
        "input pipeline",
        f"The step waits {fmt.duration(waited)} for its batch, {fmt.share(facts.share(waited))} of {facts.step_words} "
        f"({source}){hidden}.{_setting(facts)}",
        bound,
        lever,
        code,
        "high" if measured and facts.gpu is None else "medium",
        "The wait for each batch was timed without instrumentation."
        if measured
        else "The wait was seen in the trace, which includes tracing overhead.",
        "Which part of the pipeline is slow: reading, decoding or transforms. Workers that compete with the step for "
        "cores slow down its other phases too.",
        rows("phase", ["data"]),
    )


def _without_longest(facts: Facts) -> float:
    """The mean wait without the longest 2 %; the median if the batches exist already."""
    if facts.loader.get("class") in ("list", "tuple"):
        return float(np.median(facts.waits_ms))
    return without_longest(facts.waits_ms)


def _setting(facts: Facts) -> str:
    workers = facts.loader.get("num_workers")
    if not isinstance(workers, int):
        return ""
    how = "no workers: batches are made in the main process" if workers == 0 else fmt.counted(workers, "worker")
    return f" {facts.loader.get('name') or 'The loader'} has {how}."


def _lever(facts: Facts, waited: float) -> tuple[str, str]:
    kind, workers = facts.loader.get("class"), facts.loader.get("num_workers")
    name = facts.loader.get("name")
    rest = max(facts.step_ms - waited, 1e-3)
    if not isinstance(workers, int):
        if facts.live and kind not in (None, "list", "tuple"):
            return (
                "Make batches in other processes while the step computes: use a torch.utils.data.DataLoader with "
                "workers (num_workers=2, persistent_workers=True).",
                "",
            )
        return (
            "Make batches ahead of time in other processes (num_workers and prefetch_factor of torch's DataLoader), or "
            "make them cheaper: cache, vectorise.",
            "",
        )
    if facts.loader.get("dataset") == "TensorDataset" and _batched(facts) and not facts.loader.get("collates"):
        return (
            "The samples are already in memory but are fetched one at a time: fetch each batch with one index. The "
            "batches stay the same.",
            f"{name} = torch.utils.data.DataLoader({name}.dataset, sampler={name}.batch_sampler, batch_size=None)"
            if name
            else "",
        )
    # With n workers, making a batch takes n times as long as the time between batches.
    making = waited if workers == 0 else workers * facts.step_ms
    needed = math.ceil(making / rest)
    wanted, cores = max(workers + 1, needed), facts.cores
    takes = f"a batch takes about {fmt.duration(making)} to make and {fmt.duration(rest)} to use"
    if cores is not None and workers > cores and wanted > cores:
        wanted = max(1, int(cores))
        lever = (
            f"Make batches cheaper: {fmt.counted(workers, 'worker')} share {cores:g} cores, and more would not help. "
            "Cache what is read or decoded; vectorise. If making batches is CPU work, fewer workers may even be faster."
        )
    elif cores is not None and wanted > cores:
        wanted = max(workers + 1, int(cores))
        lever = (
            "Make batches cheaper (cache what is read or decoded; vectorise), and use "
            f"{fmt.counted(wanted, 'worker')}: {takes}, so about {fmt.counted(needed, 'worker')} would be needed, but "
            f"there are {cores:g} cores. If workers mostly wait for a disk or a network, use "
            f"{fmt.counted(needed, 'worker')}."
        )
    else:
        lever = (
            f"Use about {fmt.counted(wanted, 'worker')}: {takes}. If making them is CPU work, the workers need cores "
            "of their own; cheaper transforms and a cache help then."
        )
    if facts.loader.get("iterable"):
        lever += " The dataset must split its samples among them: see torch.utils.data.get_worker_info()."
    return lever, _with_workers(facts, name, wanted) if name else ""


def _batched(facts: Facts) -> bool:
    """Whether the loader has a batch sampler that another loader can reuse."""
    return facts.loader.get("batch_size") is not None and facts.loader.get("iterable") is False


def _with_workers(facts: Facts, name: str, count: int) -> str:
    """The same loader, of the same samples, with another number of workers."""
    known, same = facts.loader, [f"{name}.dataset"]
    if _batched(facts):
        same += [f"batch_sampler={name}.batch_sampler"]
    else:
        same += [f"batch_size={known.get('batch_size')!r}"]
        same += ["drop_last=True"] if known.get("drop_last") else []
    same += [f"collate_fn={name}.collate_fn"] if known.get("collates") else []
    same += ["pin_memory=True"] if facts.gpu is not None or known.get("pin_memory") else []
    return f"{name} = torch.utils.data.DataLoader({', '.join(same)}, num_workers={count}, persistent_workers=True)"
