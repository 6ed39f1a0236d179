"""Lab 10, bytes and counts: the right answers pass, and plausible wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from perfnb.labs.lab_10 import FILLED
from perfnb.labs.ledger import exercise_of
from perfnb.labs.made_job import CountedModel
from tests.labs.judging import expect, expect_of
from tests.labs.lab_10_answers import (
    a_reader,
    a_step,
    buckets,
    cell_with,
    crossed,
    early,
    efficiency,
    exposed,
    length,
    loss_of,
    never_above,
    one_rank,
    only_above,
    ring,
    sent_by_ddp,
    summed,
    without_rest,
    zeroed_at_the_end,
)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (efficiency, ""),
        (lambda one, several, ranks, mode: [ranks * e for e in efficiency(one, several, ranks, mode)],
         "That is the speed-up"),
        (lambda one, several, ranks, mode: efficiency(one, several, ranks, "weak"), "right for weak scaling only"),
        (lambda one, several, ranks, mode: efficiency(one, several, ranks, "strong"), "right for strong scaling only"),
        (crossed, "low by low and high by high"),
        (lambda *given: [efficiency(*given)[place] for place in (0, 2, 1)], "low comes first"),
        (lambda *given: [100 * e for e in efficiency(*given)], "looks like percent"),
        (lambda *given: [1 / efficiency(*given)[place] for place in (0, 2, 1)], "looks like the inverse"),
        (lambda *given: [efficiency(*given)[0]] * 3, "make the efficiency lowest"),
        (lambda one, several, ranks, mode: [e * (ranks if mode == "strong" else 1 / ranks)
                                            for e in efficiency(one, several, ranks, mode)], "swapped the two modes"),
        (lambda one, several, ranks, mode: [efficiency(one, several, ranks, "strong")[0]] * 3,
         "Your values are right for strong scaling only"),
        (lambda one, several, ranks, mode: [efficiency(one, several, ranks, "weak")[0]] * 3,
         "Your values are right for weak scaling only"),
        (lambda one, several, ranks, mode: [several[0] / one[0]] * 3, "upside down"),
        (lambda one, several, ranks, mode: [several[0] / one[0] / (ranks if mode == "strong" else 1)] * 3,
         "upside down"),
        (lambda one, several, ranks, mode: [several[0] / one[0] * (ranks if mode == "strong" else 1)] * 3,
         "upside down"),
        (lambda *given: [0.5, 0.4, 0.6], "How much work does the job do"),
    ],
)  # fmt: skip
def test_efficiency_and_its_interval(answer: Callable[..., Any], words: str) -> None:
    expect("10.2", words, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (ring, ""),
        (lambda *given: ring(*given) / 2, "one round of the ring"),
        (lambda *given: ring(*given) / 4, "How many bytes does a float32 have"),
        (lambda *given: 2 * ring(*given), "not eight"),
        (lambda *given: 8 * ring(*given), "looks like bits"),
        (lambda p, ranks, times: ring(p, ranks, 1), "for one exchange"),
        (lambda p, ranks, times: ranks * ring(p, ranks, times), "all ranks send together"),
        (lambda p, ranks, times: 4 * p * times, "the same for any number of ranks"),
        (lambda p, ranks, times: 8 * p * times, "all pieces but one"),
        (lambda p, ranks, times: 4 * p * (ranks - 1) * times, "everybody sending everything to everybody"),
        (
            lambda p, ranks, times: ring(p, ranks, times) + 8,
            "2 ranks and 1 exchange per step, your result is 2.41771e+06. Into how many",
        ),
    ],
)
def test_around_the_ring(answer: Callable[..., Any], words: str) -> None:
    expect("10.3", words, answer)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (buckets, ""),
        (lambda sizes, full: buckets(sizes[::-1], full), "Whose gradient does the backward pass compute first"),
        (lambda sizes, full: buckets(sizes, full)[::-1], "in the wrong order"),
        (never_above, "before it would exceed its size"),
        (only_above, "exactly this size is full"),
        (lambda sizes, full: without_rest(sizes, full) or [0], "left over at the end"),
        (without_rest, "left over at the end"),
        (lambda sizes, full: [*without_rest(sizes, full), sum(sizes) - sum(without_rest(sizes, full))],
         "an empty bucket of 0 bytes"),
        (lambda sizes, full: [full] * (sum(sizes) // full) + [r for r in [sum(sizes) % full] if r],
         "A gradient is never cut"),
        (lambda sizes, full: [sum(sizes)], "one bucket with everything"),
        (lambda sizes, full: sizes[::-1], "gradients one by one"),
        (lambda sizes, full: [full] * 3, "Each gradient is sent exactly once"),
        (lambda sizes, full: [sizes[-1], sum(sizes[:-1])], "Which gradient fills the first bucket"),
        (lambda sizes, full: [sizes[:1], sizes[1:]], "rather than a list of its gradients"),
    ],
)  # fmt: skip
def test_buckets(answer: Callable[..., Any], words: str) -> None:
    expect("10.4", words, answer)


def test_buckets_that_are_exactly_full_leave_nothing_over() -> None:
    case = {"sizes": [2, 3], "full": 5, "said": [5.0, 0.0]}
    expect_of("10.4", "you send an empty bucket of 0 bytes", {"cases": [case] * len(FILLED)})


def test_every_check_has_the_same_model_and_parts() -> None:
    facts = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        facts.append(exercise_of("10.5").measure(a_step()))
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(seed))
    assert facts[0] == facts[1]


def test_the_reader_of_the_check_is_the_one_of_the_lab() -> None:
    sizes = [4 * each.numel() for each in a_reader().parameters()]

    assert FILLED[1] == (sizes, 2**19)
    assert sum(sizes) == 2_417_704
    assert len(sizes) == 40


def test_both_jobs_of_the_lab_learn_from_the_same_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 24 cards of a step is read by one rank, in the same part."""
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", lambda model, **_: model)
    names: dict[str, Any] = {"torch": torch, "nn": nn, "load_digits": load_digits}
    for words, end in (("def cards(", "briefly ="), ("def toms_job(", "def transfers"), ("def evenly(", "counted =")):
        exec(cell_with(words).partition(end)[0], names)
    names["cards"] = lambda count, first=0: list(range(first, first + count))
    for job in ("toms_job", "evenly"):
        read: list[list[int]] = [[], [], [], []]
        for rank in range(2):
            monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
            _, (parts, _) = names[job]()
            read = [[*before, *cards] for before, cards in zip(read, parts, strict=True)]

        assert [sorted(part) for part in read] == [list(range(6 * place, 6 * place + 6)) for place in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("mib", [25, 1, 0.5, 0.1])
def test_ddp_sends_these_buckets(mib: float, tmp_path: Path) -> None:
    reader = a_reader()
    sizes = [4 * each.numel() for each in reader.parameters()]
    with one_rank(tmp_path):
        model = nn.parallel.DistributedDataParallel(reader, bucket_cap_mb=mib)  # type: ignore[arg-type]
        sent = sent_by_ddp(model)
        for _ in range(2):  # DDP makes its buckets after the first backward pass, by the order of its gradients
            sent.clear()
            model(torch.rand(1, 3, 64)).sum().backward()

    assert sent == buckets(sizes, mib * 2**20)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (a_step(), ""),
        (zeroed_at_the_end, ""),
        (a_step(forward=lambda *_: False), "gradients are sent 4 times"),
        (a_step(backward=True), "*forward* pass decides"),
        (a_step(forward=lambda *_: True), "gradients are never sent"),
        (a_step(forward=lambda place, _: place > 0), "sent after part 1"),
        (a_step(forward=lambda place, count: place < count - 2), "sent after part 3, 4"),
        (a_step(divided=False), "divide each loss by their number"),
        (a_step(zeroed=False), "Do the gradients of one step reach the next"),
        (lambda model, optimizer, parts: a_step()(model, optimizer, [(2 * i, t) for i, t in parts]),
         "What is each loss divided by"),
        (a_step(updates=lambda *_: True), "the optimizer makes 4 steps"),
        (a_step(updates=lambda *_: False), "the optimizer never makes a step"),
        (early, "before the last backward pass"),
        (summed, "the backward pass 1 times"),
        (lambda model, optimizer, parts: [a_step(updates=lambda *_: False)(model, optimizer, parts) for _ in "ab"],
         "more than once for each part"),
        (lambda model, optimizer, parts: a_step()(model, optimizer, parts[:-1]), "the backward pass 3 times"),
        (lambda model, optimizer, parts: loss_of(model, *parts[0]), "computes no gradients"),
        (lambda model, optimizer, parts: None, "does not call the model yet"),
    ],
)  # fmt: skip
def test_once_per_step(answer: Callable[..., Any], words: str) -> None:
    expect("10.5", words, answer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [a_step(), a_step(backward=True), a_step(forward=lambda *_: True), a_step(forward=lambda place, _: place)]
)
def test_the_counted_model_sends_as_ddp_does(step: Callable[..., None], tmp_path: Path) -> None:
    parts = [(torch.rand(1, 4, 64), torch.randint(10, (1, 4))) for _ in range(3)]
    counted = CountedModel(nn.Linear(64, 10))
    step(counted, torch.optim.SGD(counted.parameters(), lr=0.1), parts)
    with one_rank(tmp_path):
        model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
        sent = sent_by_ddp(model)
        step(model, torch.optim.SGD(model.parameters(), lr=0.1), parts)

    assert len(counted.synced) == 3
    assert sum(counted.synced) == len(sent)


def test_the_step_of_the_solution_is_that_of_the_check() -> None:
    names: dict[str, Any] = {"loss_of": loss_of}
    exec(cell_with("def night_step("), names)
    counted = CountedModel(nn.Linear(64, 10))
    parts = [(torch.rand(1, 4, 64), torch.randint(10, (1, 4))) for _ in range(4)]
    names["night_step"](counted, torch.optim.SGD(counted.parameters(), lr=0.1), parts)

    assert counted.synced == [False, False, False, True]
    assert counted.forwards == 4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (exposed, ""),
        (lambda c, s: length(s), "That is all sending"),
        (lambda c, s: length(s) - exposed(c, s), "the hidden part"),
        (lambda c, s: max(0, s[-1][1] - c[-1][1]), "gaps earlier in the step"),
        (lambda c, s: max(end for _, end in (*c, *s)) - length(c), "nothing is sent either"),
        (lambda c, s: max(0, length(s) - length(c)), "You subtract all computing"),
        (lambda c, s: exposed(c, s) + 1e-3, "your result is 4.001. For each transfer, how long does it run"),
        (lambda c, s: exposed(c, s) - 10, "A time is not negative"),
    ],
)
def test_exposed(answer: Callable[..., Any], words: str) -> None:
    expect("10.6", words, answer)


def test_a_transfer_that_only_hides_behind_one_piece() -> None:
    def first_only(computing: Any, sending: Any) -> float:
        return length(sending) - sum(
            max(max(0, min(end, until) - max(start, since)) for start, end in computing) for since, until in sending
        )

    expect("10.6", "several pieces of computing", first_only)
