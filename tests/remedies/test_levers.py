"""Levers on real steps: what they compute, what they refuse, and that nothing stays changed."""

from __future__ import annotations

import ast
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perfnb
from perfnb.bench.values import DIFFERENT, SAME, UNCHECKED
from perfnb.errors import CaptureError
from perfnb.findings import rules
from perfnb.findings.proposed_code import REMEDIES
from perfnb.findings.rules import RULES
from perfnb.remedies.lever import all_on, prepared
from perfnb.remedies.levers import LEVERS, by_name
from perfnb.remedies.state import fingerprint, untouched
from perfnb.remedies.subject import Subject, find_subject
from perfnb.remedies.try_levers import levers
from perfnb.remedies.values import check, measure_yardstick
from perfnb.step.namespace import named_parts, namespace_of
from tests.fake_clock import FakeClock


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.relu(self.first(self.norm(x))))


def training() -> tuple[Subject, Callable[[], Any]]:
    """Return a step with a model and an optimizer that have trained a little."""
    model = nn.Sequential(*[Block() for _ in range(3)], nn.Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    loss_fn = nn.CrossEntropyLoss()

    def step() -> None:
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()

    step()
    return find_subject(step, None, namespace_of(step)), step


def test_a_subject_has_what_the_step_uses_under_the_users_names() -> None:
    subject, _ = training()
    assert list(subject.models) == ["model"]
    assert list(subject.optimizers) == ["opt"]
    assert subject.trains
    assert subject.kinds == {"cpu"}


def test_a_part_in_several_variables_has_the_name_that_findings_give_it() -> None:
    net, config = nn.Linear(4, 2), dict[str, Any]()
    config["opt"] = opt = torch.optim.SGD(net.parameters(), 0.1)
    config["feed"] = loader = DataLoader(TensorDataset(torch.ones(8, 4)))

    def step(batch: Any) -> None:
        config["opt"].zero_grad()
        net(batch[0]).sum().backward()
        opt.step()
        loader  # noqa: B018

    namespace = namespace_of(step)
    subject, parts = find_subject(step, loader, namespace), named_parts(namespace, loader, [net])

    assert list(subject.optimizers) == [one["name"] for one in parts["optimizers"]] == ["opt"]
    assert subject.loader is not None
    assert subject.loader[0] == parts["loader"]["name"] == "loader"


def test_recomputing_updates_the_statistics_of_batch_norm_twice() -> None:
    subject, _ = training()
    with untouched(subject):
        yardstick = measure_yardstick(subject)
        assert yardstick.exact
        with prepared(by_name()["checkpointing"], subject, 0.0) as one:
            assert check([one], subject, yardstick).verdict == DIFFERENT


def test_an_optimizer_of_sparse_gradients_is_not_fused() -> None:
    table, linear = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)
    opt = torch.optim.SGD([*table.parameters(), *linear.parameters()], lr=0.1)
    ids = torch.tensor([1, 2])

    def step() -> None:
        opt.zero_grad()
        linear(table(ids)).sum().backward()
        opt.step()

    subject = find_subject(step, None, namespace_of(step))
    assert "sparse" in by_name()["fused_optimizer"].refuses(subject)


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.randn(16)


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(320.0).reshape(20, 16)


class Unsendable(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("only in the main process")
        return torch.zeros(16)


@pytest.mark.parametrize(
    ("dataset", "options", "workers", "verdict"),
    [
        (TensorDataset(torch.randn(20, 16)), {"shuffle": True}, 2, SAME),
        (TensorDataset(torch.randn(20, 16)), {}, 1, SAME),
        (Noisy(), {}, 1, UNCHECKED),
        (Stream(), {}, 2, DIFFERENT),  # each worker gives all of it
    ],
)
def test_batches_of_a_loader_with_workers_are_compared(
    dataset: Any, options: dict[str, Any], workers: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfnb.remedies.levers.loading.workers_for", lambda subject: workers)
    subject, loader = fed_step(dataset, **options)
    lever, before = by_name()["loader_workers"], fingerprint(subject)
    assert lever.refuses(subject) == ""
    with prepared(lever, subject, 0.0) as one:
        assert check([one], subject, measure_yardstick(subject)).verdict == verdict
    assert subject.batches is loader
    assert fingerprint(subject) == before


def fed_step(dataset: Any, **options: Any) -> tuple[Subject, DataLoader[Any]]:
    """Return a step that trains on batches of a loader."""
    model, loader = nn.Linear(16, 1), DataLoader(dataset, batch_size=2, **options)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: Any) -> None:
        opt.zero_grad()
        model(batch[0] if isinstance(batch, list) else batch).square().mean().backward()
        opt.step()

    return find_subject(step, loader, namespace_of(step)), loader


def test_a_loader_is_tried_in_blocks_and_its_failure_is_reported() -> None:
    subject, loader = fed_step(TensorDataset(torch.randn(400, 16)))
    table = perfnb.try_levers(subject.step, loader, levers=["loader_workers", "gc_freeze"], budget_s=60).table
    assert table.loc["loader_workers", "values"] == "exact"
    assert set(table["verdict"]) != {"not tried"}
    subject, loader = fed_step(Unsendable())
    table = perfnb.try_levers(subject.step, loader, levers=["loader_workers"], budget_s=60).table
    assert "ValueError in DataLoader worker" in table.loc["loader_workers", "why_not"]


@pytest.mark.parametrize("batches", [[torch.ones(2, 16)], []])
def test_what_reads_the_first_batch_is_closed(batches: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr("perfnb.remedies.subject.BatchSource.close", lambda source: closed.append(source))
    subject, _ = fed_step(TensorDataset(torch.ones(4, 16)))
    closed.clear()
    with nullcontext() if batches else pytest.raises(CaptureError):
        find_subject(subject.step, batches, namespace_of(subject.step))
    assert len(closed) == 1
    with ExitStack() as stack:
        subject.fed(stack)()
        assert len(closed) == 1
    assert len(closed) == 2


def test_a_loader_that_a_function_returns_feeds_the_step() -> None:
    subject, loader = fed_step(TensorDataset(torch.randn(4, 16)))
    made = find_subject(subject.step, lambda: loader, namespace_of(subject.step))
    assert made.batches is loader
    assert made.loader is not None
    assert made.loader[1] is loader


def test_a_loader_that_does_not_feed_the_step_is_refused() -> None:
    subject, loader = fed_step(TensorDataset(torch.randn(400, 16)))
    other = find_subject(subject.step, list(loader), namespace_of(subject.step), loader=loader)
    assert "do not come directly" in by_name()["loader_workers"].refuses(other)


def test_every_lever_has_a_line_in_the_list() -> None:
    table = levers()
    assert [lever.name for lever in LEVERS] == list(table.index)
    assert all(table["what it does"].str.len() > 10)


def test_the_users_own_error_comes_through_and_nothing_is_left(clock: FakeClock) -> None:
    subject, step = training()
    before = fingerprint(subject)
    calls = 0

    def failing() -> None:
        nonlocal calls
        calls += 1
        step()
        if calls > 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perfnb.try_levers(failing, model=subject.models["model"], levers=["threads", "autocast"], budget_s=60)
    assert fingerprint(subject) == before


@pytest.mark.deep
@pytest.mark.parametrize("instant", range(20))
def test_an_interrupt_at_any_instant_leaves_everything_as_it_was(instant: int) -> None:
    subject, step = training()
    before = fingerprint(subject)
    names = ["threads", "fused_optimizer", "foreach_optimizer", "autocast", "gc_freeze"]
    delay_s = random.Random(instant).uniform(0.0, 1.5)
    timer = threading.Timer(delay_s, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):  # in the middle: a budget of a minute ends later
        perfnb.try_levers(step, levers=names, budget_s=60)
    timer.join()
    assert fingerprint(subject) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levers": "all"}, "levers must be"),
        ({"levers": ["compil"]}, "levers must be"),
        ({"levers": []}, "levers must be"),
        ({"levers": [["threads"]]}, "levers must be"),
        ({"budget_s": -1}, "budget_s"),
        ({"goal": "speed"}, "goal must be"),
        ({"limits": lambda value: True}, "limits must be a mapping"),
        ({"limits": {"loss": 0.3}}, "without quality"),
        ({"limits": {"difference": 0.3}}, "compared with float64"),
        ({"quality": 0.9}, "quality must be a function"),
        ({"optimizer": "o"}, "optimizer must be a torch optimizer or a list"),
        ({"optimizer": [3]}, "optimizer must be a torch optimizer or a list"),
        ({"loader": [1, 2]}, "loader must be a torch DataLoader"),
    ],
)
def test_arguments_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    def step() -> None:
        raise AssertionError("the step ran")

    with pytest.raises((TypeError, ValueError), match=words):
        perfnb.try_levers(step, **options)


def trained(model: nn.Module) -> None:
    """Change a model's parameters, as a step does."""
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def test_a_model_deep_inside_an_object_is_found() -> None:
    model = nn.Linear(2, 1)
    holder = SimpleNamespace(parts=[[model]])

    def step() -> None:
        trained(holder.parts[0][0])

    subject = find_subject(step, None, namespace_of(step))
    assert (subject.models, subject.trains) == ({"Linear": model}, True)


def test_a_model_that_nothing_leads_to_is_refused_in_a_sentence_and_keeps_its_weights() -> None:
    elsewhere, model = ModuleType("elsewhere"), nn.Linear(2, 1)
    elsewhere.run = lambda: trained(model)  # type: ignore[attr-defined]
    before = model.weight.detach().clone()
    with pytest.raises(
        CaptureError, match="the step calls a Linear that is not in any of its variables: keep the model"
    ):
        perfnb.try_levers(lambda: elsewhere.run(), budget_s=1)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_a_step_without_a_model_takes_the_levers_that_need_none() -> None:
    plain = torch.ones(3)
    with torch.inference_mode():
        constant = torch.ones(3)  # which has no version
    assert find_subject(lambda: nn.Tanh()(plain), None, {}).models == {}  # an activation has nothing to put back
    names = ["gc_freeze", "compile"]
    table = perfnb.try_levers(lambda: plain * constant, levers=names, budget_s=30).table
    assert table["values"]["gc_freeze"] == SAME
    assert "calls no model" in table["why_not"]["compile"]

    def silent() -> None:
        _ = plain * 2

    assert perfnb.try_levers(silent, levers=names, budget_s=30).table["values"]["gc_freeze"] == UNCHECKED
    with pytest.raises(CaptureError, match="the step changes a tensor in place that is not part of any model"):
        perfnb.try_levers(lambda: plain.add_(1), budget_s=30)


def test_a_step_that_updates_every_fourth_time_is_left_as_it_was_and_no_reason_is_false() -> None:
    net = nn.Linear(4, 4)
    opt, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(2, 4)

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.n, self.ema = net, 2, torch.ones(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            self.n += 1
            self.ema = self.ema * 0.5 + out.detach().mean(0)
            return out

    model = Owner()
    ema = model.ema

    def step() -> None:
        model(x).sum().backward()
        if model.n % 4 == 0:
            opt.step()
            opt.zero_grad()

    found = perfnb.try_levers(step, levers=["gc_freeze", "fused_optimizer", "set_to_none"], budget_s=60, confirm=False)

    assert (model.n, model.ema is ema) == (2, True)
    assert found.table.loc["gc_freeze", "values"] == SAME
    for lever in ("fused_optimizer", "set_to_none"):
        assert "if it updates only every few calls" in found.table.loc[lever, "why_not"]


def test_levers_can_be_on_together() -> None:
    subject, _ = training()
    levers, before = by_name(), torch.get_num_threads()
    with (
        prepared(levers["threads"], subject, 0.0) as threads,
        prepared(levers["fused_optimizer"], subject, 0.0) as fused,
        all_on([threads.switch, fused.switch])(),
    ):
        assert all(group["fused"] for group in subject.optimizers["opt"].param_groups)
        assert torch.get_num_threads() != before or levers["threads"].refuses(subject)
    assert not any(group["fused"] for group in subject.optimizers["opt"].param_groups)


def test_every_lever_named_by_a_rule_exists() -> None:
    found: set[str] = set()
    for file in Path(rules.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                found |= {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)} - {""}
    assert found <= REMEDIES <= set(by_name())
    assert found > {rule.remedy for rule in RULES} - {""}


def test_levers_answer_bottlenecks_that_exist() -> None:
    known = {rule.name for rule in RULES}
    assert {answer for lever in LEVERS for answer in lever.answers} <= known


def test_the_documentation_lists_every_lever() -> None:
    page = (Path(perfnb.__file__).parents[1] / "docs" / "levers.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and "`--" not in line]
    said = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert said == [[f"`{lever.name}`", lever.words, ", ".join(lever.answers)] for lever in LEVERS]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.remedy], ids=lambda rule: rule.name)
def test_a_finding_names_a_lever_that_answers_it(rule: Any) -> None:
    answers = levers()["answers"]
    assert rule.name in answers[rule.remedy].split(", ")


def test_an_interrupted_compilation_leaves_the_recursion_limit_as_it_was() -> None:
    before = sys.getrecursionlimit()
    model = nn.Linear(2, 2)
    subject = find_subject(lambda: model(torch.ones(1, 2)), None, {"model": model})

    def compiles() -> None:
        sys.setrecursionlimit(before + 1000)  # as dynamo does meanwhile
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), by_name()["compile"].prepared(subject):
        compiles()

    assert sys.getrecursionlimit() == before
