"""Lab 10, the planted step and the eight ranks: what is planted is there, and plausible wrong answers are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import perfnb
from perfnb import labs
from perfnb.labs.made_job import LATE, LATE_ONCE, ONCE, RANKS, planted_step, write_job
from perfnb.results import Ranks
from tests.labs.judging import expect, hint
from tests.labs.lab_10_answers import buckets, cell_with, exposed

READER = 2_417_704
ONLY_LAST = (False, False, False, True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def rented(files: list[Path]) -> Ranks:
    ranks = perfnb.load(files)
    assert isinstance(ranks, Ranks)
    return ranks


def test_perfnb_names_the_straggler(rented: Ranks) -> None:
    assert (rented.straggler, len(rented)) == (LATE, RANKS)


def test_the_job_sends_for_longer_than_it_computes(rented: Ranks) -> None:
    """So that perfect overlap saves a quarter of the step, and not all that is exposed."""
    mean = rented.times.groupby("rank").mean().astype(float).loc[0]
    free = mean["computation_ms"] - mean["overlap_ms"]
    still = mean["exposed_ms"] - mean["waiting_ms"]

    assert free < still
    assert 0.2 < free / mean["wall_ms"] < 0.3


def waits(rented: Ranks) -> Any:
    return rented.times.groupby("rank")["waiting_ms"].mean().astype(float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: {}, ""),
        (lambda w: {"rank": np.int64(LATE), "waits_ms": torch.tensor(w.drop(LATE).mean())}, ""),
        (lambda w: {"rank": LATE_ONCE}, "only in the step with the longest waits"),
        (lambda w: {"waits_ms": w.max()}, "waits longest"),
    ],
)
def test_the_straggler(rented: Ranks, change: Callable[[Any], dict[str, Any]], words: str) -> None:
    own = waits(rented)
    expect("10.7", words, {"rank": LATE, "waits_ms": own.drop(LATE).mean()} | change(own), ranks=rented)


def test_the_step_of_another_rank_counts(rented: Ranks) -> None:
    usual = rented.times[rented.times["step"] != ONCE].groupby("rank")["waiting_ms"].mean().astype(float).drop(LATE)

    assert "leaves out the step" in hint("10.7", {"rank": LATE, "waits_ms": usual.mean()}, ranks=rented)


def test_communication_is_not_waiting(rented: Ranks) -> None:
    own = rented.times.groupby("rank")["communication_ms"].mean().drop(LATE).mean()

    assert "all communication" in hint("10.7", {"rank": LATE, "waits_ms": own}, ranks=rented)
    assert "Pass the ranks" in hint("10.7", {"rank": LATE, "waits_ms": own}, ranks=3)


def best(step: float, computing: float, sending: float, both: float, waiting: float) -> float:
    """By filling the free computing with what is exposed."""
    exposed_ms, free = sending - both - waiting, computing - both
    return step - exposed_ms + max(exposed_ms - free, 0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (best, ""),
        (lambda s, c, t, b, w: s - (t - b - w), "not enough computing left"),
        (lambda s, c, t, b, w: s - min(t - b, c - b), "the last rank come earlier"),
        (lambda s, c, t, b, w: s - (t - b), "including the waiting for another rank"),
        (lambda s, c, t, b, w: s - t, "hidden already"),
        (lambda s, c, t, b, w: max(c, t), "neither computing nor sending"),
        (lambda s, c, t, b, w: s - min(t - b - w, c), "cannot hide anything else"),
        (lambda s, c, t, b, w: s - best(s, c, t, b, w), "how much shorter the step becomes"),
        (lambda s, c, t, b, w: s - min(t - w, c - b), "cannot be saved a second time"),
        (lambda s, c, t, b, w: s / 2, "your result is 20. How much transfer is still exposed"),
    ],
)
def test_perfect_overlap(answer: Callable[..., Any], words: str) -> None:
    expect("10.8", words, answer)


@pytest.mark.parametrize(
    ("cards", "sizes", "synced", "step_ms"),
    [
        ([6], [], (True,) * 4, 4 * 30 + 4),
        ([2, 4], [READER], (True,) * 4, 4 * (20 + 0.5 + READER / 270e3) + 4),
        ([3, 3], [READER], (True,) * 4, 4 * (15 + 0.5 + READER / 270e3) + 4),
        ([3, 3], [READER], ONLY_LAST, 60 + 0.5 + READER / 270e3 + 4),
    ],
)
def test_a_planted_step(cards: list[int], sizes: list[float], synced: tuple[bool, ...], step_ms: float) -> None:
    work = planted_step(cards, sizes, synced)

    assert work["end_ms"].max() == pytest.approx(step_ms)
    assert (work["end_ms"] > work["start_ms"]).all()
    waiting = work[work["what"] == "waiting"]
    assert set(waiting["rank"]) == ({0} if cards == [2, 4] else set())


def test_smaller_buckets_hide_most_and_tiny_ones_nothing() -> None:
    """The figures that the lab names: 124 ms for one process, 122 for Tom's two, and 68 for the repaired ones."""
    exec(cell_with("def buckets("), names := dict[str, Any]())
    sizes = [5160, 262_656, 264_192, 1024, 66_048, 198_144, 1024]
    assert names["buckets"](sizes, 2**19) == buckets(sizes, 2**19)

    five = [532_008, 528_896, 529_408, 527_872, 299_520]
    steps = {len(sent): planted_step([3, 3], sent, ONLY_LAST) for sent in ([READER], five, [READER / 50] * 50)}
    ends = {count: work["end_ms"].max() for count, work in steps.items()}
    bare = {count: exposed_of(work) for count, work in steps.items()}
    assert round(ends[5]) == 68
    assert bare[5] < bare[1] / 2 < bare[1] < bare[50]
    assert ends[1] - bare[1] == pytest.approx(ends[5] - bare[5])
    assert round(planted_step([2, 4], [READER])["end_ms"].max()) == 122


def exposed_of(work: Any) -> float:
    of = work[work["rank"] == 1]
    return exposed(
        *(list(zip(*of.loc[of["what"] == what, ["start_ms", "end_ms"]].to_numpy().T, strict=True))
          for what in ("computing", "sending"))
    )  # fmt: skip


def test_the_real_traces_are_an_extra(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The cell downloads nothing unless it is asked to; without a network, it gives the reason."""
    cell = cell_with("REAL = False")
    places: list[str] = []

    def retrieve(place: str, path: Path) -> None:
        places.append(place)
        path.write_bytes(files[len(places) - 1].read_bytes())

    def fail(*_: Any) -> None:
        raise OSError("no network")

    for text, fetch in ((cell, fail), (asked := cell.replace("REAL = False", "REAL = True"), fail), (asked, retrieve)):
        exec(text, {"urllib": SimpleNamespace(request=SimpleNamespace(urlretrieve=fetch)), "Path": Path, "np": np,
                    "perfnb": perfnb, "folder": SimpleNamespace(name=str(tmp_path)), "best_ms": best})  # fmt: skip
    said = capsys.readouterr().out.splitlines()

    assert said[0] == "The traces could not be downloaded: no network"
    assert said[1] == "rank 0: step 38 ms, with perfect overlap 28 ms"
    assert len(said) == 1 + RANKS
    assert places[7].endswith("/rank-7.json.gz")


def test_right_answers_verify(rented: Ranks, tmp_path: Path) -> None:
    labs.check("10.7", {"rank": LATE, "waits_ms": waits(rented).drop(LATE).mean()}, ranks=rented)
    labs.check("10.8", best)
    verdicts = labs.verify(labs.export(tmp_path / "lab_10.json")).verdicts

    assert verdicts["10.7"] == verdicts["10.8"] == "right"
