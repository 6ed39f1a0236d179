"""Batches of every kind feed the steps; when they end, the profile continues from the beginning or gives a
recommendation.
"""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset, dataloader

import perfnb
from perfnb.errors import BatchesExhaustedError, CaptureError
from perfnb.step.cells import BATCH, Clause, batches_of, step_of
from perfnb.step.data_waits import Intake, common_size, token_count
from perfnb.step.loaders import Nameless, see_loaders
from perfnb.step.steps import BatchSource, Passes, StepRunner, Turn, after_optimizer_steps
from tests.fake_clock import FakeClock

pytestmark = pytest.mark.usefixtures("nothing_left")

Pair = namedtuple("Pair", "x y")

Workers = Callable[[], list[psutil.Process]]


def fed(batches: Any, **options: Any) -> tuple[perfnb.Profile, list[Any]]:
    """Return a profile, and the batches that its steps were given."""
    seen: list[Any] = []
    passes = {"warmup": 1, "steps": 2, "traced": 1, "memory": False, "flops": False} | options
    return perfnb.profile_step(seen.append, batches, **passes), seen


def dataset(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count).float()[:, None])


def test_a_loader_is_begun_again_when_it_ends() -> None:
    p, seen = fed(DataLoader(dataset(8), batch_size=4))

    assert [batch[0][0].item() for batch in seen] == [0, 4, 0, 4, 0]
    assert p.timing.batch_size == 4
    assert p.timing.throughput_per_s == pytest.approx(4 / p.timing.median_ms * 1e3)
    assert (p.steps["data_ms"] > 0).all()
    assert (p.steps["data_ms"] < p.steps["wall_ms"]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("feeders_end")
def test_a_loaders_workers_start_again_with_it_and_are_gone_in_the_end(workers: Workers) -> None:
    loader = DataLoader(dataset(8), batch_size=4, num_workers=1)

    _, seen = fed(loader, steps=1)

    assert [batch[0][0].item() for batch in seen] == [0, 4, 0, 4]
    assert workers() == []


@pytest.mark.usefixtures("feeders_end")
def test_persistent_workers_belong_to_the_loader_and_stay_with_it(workers: Workers) -> None:
    loader = DataLoader(dataset(8), batch_size=4, num_workers=1, persistent_workers=True)

    fed(loader, steps=1)

    assert len(workers()) == 1
    assert [batch[0][0].item() for batch in loader] == [0, 4]
    del loader


def test_a_callable_is_asked_for_a_new_iterable_at_each_start() -> None:
    made = 0

    def make() -> Iterable[tuple[int, str]]:
        nonlocal made
        made += 1
        return enumerate("ab")

    _, seen = fed(make)

    assert seen == [(0, "a"), (1, "b"), (0, "a"), (1, "b"), (0, "a")]
    assert made == 3


def test_a_list_is_begun_again_and_an_iterator_is_used_up_to_the_last_step_and_not_closed() -> None:
    p, seen = fed(["a", "b"])
    assert seen == ["a", "b", "a", "b", "a"]
    assert p.steps["pass"].tolist() == ["warmup", "timed", "timed", "lead_in", "traced"]

    generator = (number for number in range(9))
    assert fed(generator)[1] == [0, 1, 2, 3, 4]
    assert list(generator) == [5, 6, 7, 8]


@pytest.mark.parametrize(
    ("batches", "before", "again"),
    [([1], False, True), (iter([1]), False, False), (lambda: [1], True, True), (lambda: iter([1]), True, True)],
)
def test_batches_start_again_unless_they_are_an_iterator(batches: Any, before: bool, again: bool) -> None:
    source = BatchSource(batches)
    assert source.starts_again == before
    assert (source.next(), source.starts_again) == (1, again)
    assert (source.starts, source.taken) == (1, 1)
    if again:
        assert (source.next(), source.starts, source.taken) == (1, 2, 2)


def test_a_failed_step_is_run_again_on_its_batch() -> None:
    given: list[int] = []

    def step(batch: int) -> None:
        given.append(batch)
        assert len(given) != 2

    def passes() -> Passes[None]:
        first, again = (Turn("timed", nullcontext, nullcontext, None, again) for again in (False, True))
        yield again  # there is no batch yet
        with pytest.raises(AssertionError):
            yield first
        yield again
        yield again  # the step did not fail

    StepRunner(step, BatchSource([1, 2, 3])).drive(passes())
    assert given == [1, 2, 2, 3]


@pytest.mark.parametrize("count", [1, 3])
def test_a_generator_that_runs_out_is_an_error_that_says_what_to_do(count: int) -> None:
    def short() -> Iterator[int]:
        yield from range(count)

    with pytest.raises(BatchesExhaustedError) as caught:
        fed(short())

    assert isinstance(caught.value, CaptureError)
    assert str(caught.value) == (
        f"The batches ran out after {count} and cannot start again, because they are an iterator or a generator: "
        "pass a list, a loader, or a function that returns new ones."
    )


NOTHING = {"list": [], "tuple": (), "iterator": iter([]), "function": lambda: [], "loader": DataLoader([])}


@pytest.mark.parametrize("nothing", NOTHING.values(), ids=NOTHING)
def test_no_batches_at_all_is_another_error(nothing: Any) -> None:
    with pytest.raises(BatchesExhaustedError, match=r"^batches is empty: a step needs at least one\.$"):
        fed(nothing)


@pytest.mark.parametrize("wrong", [3, 1.5, object(), lambda: 3])
def test_what_cannot_be_iterated_is_refused_in_one_sentence(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^batches must be an iterable or a callable that returns one, not \w+\.$"):
        fed(wrong)


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.ones(5, 2), 5),
        ((torch.ones(5, 2), torch.ones(5)), 5),
        ({"x": torch.ones(5, 2), "y": [torch.ones(5)]}, 5),
        (Pair(torch.ones(5, 2), torch.ones(5)), 5),
        ((torch.ones(5), torch.tensor(2.0), "name", None, 3), 5),
        ((torch.ones(5), torch.ones(4)), None),
        (torch.tensor(1.0), None),
        ("text", None),
        (7, None),
        (None, None),
        ([], None),
        ({}, None),
    ],
)
def test_the_batch_size_is_the_first_dimension_that_all_tensors_share(batch: Any, size: int | None) -> None:
    assert common_size(batch) == size


def test_a_batch_that_contains_itself_does_not_hang() -> None:
    batch: list[Any] = [torch.ones(3)]
    batch.append(batch)

    assert common_size(batch) == 3


@pytest.mark.slow
@pytest.mark.parametrize("batches", [["text"], None])
def test_throughput_is_unknown_where_the_batch_size_is(batches: Any) -> None:
    calls: list[Any] = []
    passes: dict[str, Any] = {"warmup": 0, "steps": 1, "traced": 1, "memory": False, "flops": False}
    p = perfnb.profile_step(lambda *batch: calls.append(batch), batches, **passes)

    assert p.timing.batch_size is None
    assert p.timing.throughput_per_s is None
    if batches is None:
        assert calls == [()] * len(p.steps)
        assert (p.steps["data_ms"] == 0).all()
        assert p.phases.loc["data", "ms"] == 0


def test_throughput_of_batches_of_different_sizes_is_that_of_all_steps_together() -> None:
    p, _ = fed([torch.ones(4, 1), torch.ones(2, 1)], warmup=0)

    wall = p.steps.loc[p.steps["pass"] == "timed", "wall_ms"]
    assert p.timing.batch_size is None
    assert p.timing.throughput_per_s == pytest.approx(6 / wall.sum() * 1e3)


@pytest.mark.parametrize("wait_ns", [None, 0])
def test_a_wait_that_nobody_reported_is_unknown_unless_all_would_be(wait_ns: int | None) -> None:
    intake = Intake()
    intake.begin(wait_ns=wait_ns)
    assert intake.end("timed").data_ns == wait_ns


class Loader:
    """Stands for one of torch's loaders."""


def test_what_a_step_asks_of_loaders_is_its_wait_and_the_first_one_gives_its_batches(clock: FakeClock) -> None:
    def fetch(ms: float, batch: Any) -> Callable[[], Any]:
        return lambda: (clock.pass_exactly(ms), batch)[1]

    intake, seen, (own, other) = Intake(), list[Any](), (Loader(), Loader())
    batches = [torch.zeros(8, 3, dtype=torch.int64), torch.zeros(4, 3), torch.zeros(2, 5, dtype=torch.int64)]

    def see(batch: Any) -> None:
        clock.pass_exactly(50)
        seen.append(batch)

    assert intake.take(own, fetch(9, "early")) == "early"  # no step is open
    intake.begin(see, wait_ns=0)
    for loader, ms, batch in zip((own, other, own), (5, 2, 3), batches, strict=True):
        clock.pass_exactly(1)
        assert intake.take(loader, fetch(ms, batch)) is batch
    step = intake.end("timed")

    assert [id(batch) for batch in seen] == [id(batches[0]), id(batches[2])]
    assert (step.pass_name, step.samples, step.tokens, step.batches) == ("timed", 10, 34, 2)
    assert step.data_ns == pytest.approx(10e6, abs=1e4)
    assert step.wall_ns == pytest.approx(13e6, abs=1e4)
    assert not intake.is_open


def test_a_wait_ends_with_the_error_of_the_loader_and_is_counted_once(clock: FakeClock) -> None:
    def ends() -> Any:
        clock.pass_exactly(5)
        raise StopIteration

    intake = Intake()
    intake.begin()
    with pytest.raises(StopIteration):
        intake.take(Loader(), ends)
    clock.pass_exactly(7)
    intake.wait()
    intake.wait()  # still waits
    clock.pass_exactly(2)
    intake.take(Loader(), lambda: clock.pass_exactly(1))  # inside what the step waits for already
    intake.get(torch.zeros(4, 1))
    step = intake.end("timed")
    assert step.data_ns == pytest.approx(8e6, abs=1e4)
    assert (step.samples, step.tokens, step.batches) == (4, None, 1)


class Unreadable(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("no items")


IDS = torch.zeros(2, 5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"input_ids": IDS, "x": torch.zeros(2, 5)}, 10),
        ({"input_ids": torch.zeros(2, 5)}, None),
        ({"input_ids": [1, 2]}, None),
        ([IDS, torch.zeros(2, dtype=torch.int64)], 10),
        ([IDS.to(torch.int32)], 10),
        ([IDS, torch.zeros(2)], None),
        (IDS.to(torch.uint8), None),
        (torch.zeros(2, 1, dtype=torch.int64), None),
        (torch.zeros(5, dtype=torch.int64), None),
        ([[[[IDS]]]], 10),
        ([[[[[IDS]]]]], None),
        ({"a": {"a": {"a": {"a": IDS}}}}, 10),
        ({"a": {"a": {"a": {"a": [IDS]}}}}, None),
        ("text", None),
        (Unreadable(), None),
    ],
)
def test_token_ids_are_whole_numbers_in_two_dimensions(batch: Any, count: int | None) -> None:
    assert token_count(batch) == count


def test_a_batch_that_cannot_be_read_has_no_size() -> None:
    assert common_size(Unreadable([torch.zeros(3)])) is None


def test_a_clause_binds_each_batch_to_its_target_in_the_users_namespace() -> None:
    namespace: dict[str, Any] = {"n": 2}
    assign, body = compile(f"a, b = {BATCH}", "clause", "exec"), compile("total = a + b", "cell", "exec")
    step = step_of(body, namespace, assign)
    step((1, 2))
    assert {name: value for name, value in namespace.items() if name != "__builtins__"} == {
        "n": 2, "a": 1, "b": 2, "total": 3
    }  # fmt: skip
    namespace |= {"a": 5, "b": 6}
    step_of(body, namespace, None)()
    assert namespace["total"] == 11


class Items:
    """Can be iterated by its items alone."""

    def __getitem__(self, place: int) -> int:
        return [7, 8][place]


def test_the_iterable_of_a_clause_is_evaluated_anew() -> None:
    namespace: dict[str, Any] = {"n": 2}
    clause = Clause(compile("i = 0", "clause", "exec"), compile("given(n)", "clause", "eval"), "for i in given(n)")
    batches = batches_of(clause, namespace, ValueError)
    namespace["given"] = range
    assert list(batches()) == [0, 1]
    namespace["n"] = 3
    assert list(batches()) == [0, 1, 2]
    namespace["given"] = lambda _: Items()
    assert list(batches()) == [7, 8]
    namespace["given"] = int
    with pytest.raises(ValueError, match=r"^'for i in given\(n\)' yields no batches: int is not iterable\.$"):
        batches()


def test_batches_that_this_thread_requests_are_taken_with_their_loader() -> None:
    taken: list[Any] = []

    def take(loader: Any, following: Callable[[], Any]) -> Any:
        batch = following()
        taken.append((loader, [*batch[0].flatten().tolist()]))
        return batch

    class Nested(TensorDataset):
        def __getitem__(self, place: int) -> Any:
            next(iter(inner))  # part of the outer loader's work
            return super().__getitem__(place)  # type: ignore[no-untyped-call]

    inner, outer = DataLoader(dataset(2)), DataLoader(Nested(torch.arange(3.0)), batch_size=2)
    before = dataloader._BaseDataLoaderIter.__next__
    undo = see_loaders(dataloader, take)
    try:
        assert [len(batch[0]) for batch in outer] == [2, 1]
        thread = threading.Thread(target=lambda: [*inner])
        thread.start()
        thread.join()
        for _ in DataLoader(dataset(2)):
            pass
        assert len([*inner]) == 2  # after the end of the others, which raised an exception
    finally:
        undo()
    assert taken[:2] == [(outer, [0.0, 1.0]), (outer, [2.0])]
    assert taken[4:] == [(inner, [0.0]), (inner, [1.0])]
    (first, one), (second, two) = taken[2:4]
    assert (type(first), first is second, one, two) == (Nameless, True, [0.0], [1.0])
    assert dataloader._BaseDataLoaderIter.__next__ is before


def test_a_function_is_called_after_the_steps_of_one_or_of_all_optimizers() -> None:
    one, other = (torch.optim.SGD([torch.zeros(1)]) for _ in range(2))
    calls: list[tuple[str, Any]] = []
    remove_one = after_optimizer_steps(lambda optimizer, *_: calls.append(("one", optimizer)), one)
    remove_all = after_optimizer_steps(lambda optimizer, *_: calls.append(("all", optimizer)))
    one.step()
    other.step()
    assert sorted(calls, key=lambda call: call[0]) == [("all", one), ("all", other), ("one", one)]
    calls.clear()
    remove_one()
    one.step()
    remove_all()
    other.step()
    assert calls == [("all", one)]
