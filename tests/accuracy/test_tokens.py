"""Times of tokens: planted ones belong to the right token, and those of `generate` agree with a hand-timed control."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import perfnb
from tests.accuracy.judging import Figures

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_planted_times_belong_to_their_token(figure: Figures) -> None:
    gaps_ms = [5.0] * 7
    gaps_ms[3] = 20.0  # before the fifth token

    def answer(prompt: str) -> Iterator[str]:
        time.sleep(0.05)
        yield "first"
        for gap in gaps_ms:
            time.sleep(gap / 1e3)
            yield "word"

    found = perfnb.latency(answer, ["prompt"], tokens=True, budget_s=10)

    closed = found.token_times[found.token_times["served"] >= 2]
    gaps = closed.assign(gap=closed.groupby("served")["after_start_ms"].diff()).groupby("token")["gap"].median()
    figure("tokens: time to the first, planted 50 ms: off by", abs(found.ttft_ms - 50), at_most=1, unit="ms")
    figure("tokens: gap between tokens, planted 5 ms: off by", abs(found.itl_ms - 5), at_most=1, unit="ms")
    off = float(np.abs(gaps.to_numpy()[1:] - gaps_ms).max())
    figure("tokens: gap before each, one of them planted 20 ms: off by at most", off, at_most=1, unit="ms")


class HandTimed:
    """A streamer of the test's own: when it was handed what."""

    def __init__(self) -> None:
        self.at_ms: list[float] = []

    def put(self, value: Any) -> None:
        self.at_ms.append(1e3 * time.perf_counter())

    def end(self) -> None:
        """Nothing to do."""


def generator() -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")
    options = {"n_layer": 4, "n_head": 4, "n_embd": 256, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**options)).eval()

    def generate(ids: torch.Tensor, streamer: Any = None) -> Any:
        return model.generate(ids, streamer=streamer, max_new_tokens=16, do_sample=False, pad_token_id=0)

    return generate


def test_tokens_of_generate_agree_with_a_hand_timed_control(figure: Figures) -> None:
    torch.manual_seed(0)
    generate, ids = generator(), torch.randint(1, 1000, (1, 128))

    def by_hand() -> tuple[float, float]:
        firsts, gaps, end = [], [], time.perf_counter() + 0.6
        while time.perf_counter() < end:
            control, begin = HandTimed(), 1e3 * time.perf_counter()
            generate(ids, streamer=control)
            firsts.append(control.at_ms[1] - begin)  # the prompt comes before it
            gaps += np.diff(control.at_ms[1:]).tolist()
        return float(np.median(firsts)), float(np.median(gaps))

    def by_perfnb() -> tuple[float, float]:
        found = perfnb.latency(generate, [ids], tokens=True, budget_s=0.6 / 0.85)
        return found.ttft_ms, found.itl_ms

    by_hand()
    ratios = []
    for place in range(40):  # short, and in turn, so that the machine's pace is in both
        ways = (by_hand, by_perfnb) if place % 2 else (by_perfnb, by_hand)
        times = {way: way() for way in ways}
        ratios.append(np.divide(times[by_perfnb], times[by_hand]))
    first, between = np.median(ratios, axis=0)
    figure("tokens of generate: time to the first / hand-timed", float(first), within=(0.98, 1.02))
    figure("tokens of generate: gap between tokens / hand-timed", float(between), within=(0.98, 1.02))
