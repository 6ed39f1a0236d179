"""Tokens of answers: when the first came, the gaps between the others, by generators and by streamers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference.serving import TokenTimes
from perfnb.inference.tokens import goodput
from tests.fake_clock import FakeClock


@pytest.fixture
def generated(clock: FakeClock) -> Any:
    def generate(count: int) -> Iterator[str]:
        clock.pass_exactly(50)
        for place in range(count):
            yield "" if place == 1 else "word"
            clock.pass_exactly(5)

    return generate


def test_each_token_has_its_time(generated: Any) -> None:
    found = perfnb.latency(generated, [4, 1, 8], tokens=True, budget_s=10)

    assert found.ttft_ms == pytest.approx(50, abs=0.1)
    assert found.itl_ms == pytest.approx(5, abs=0.1)
    by_size = found.tokens.groupby("request").first()
    assert by_size["tokens"].tolist() == [3, 1, 7]  # the empty one does not count
    assert by_size["tpot_ms"].round(1).tolist()[0] == 7.5  # 15 ms for two tokens, of which one waits for the empty one
    assert pd.isna(by_size["tpot_ms"].iloc[1])
    assert "First token after 50.0 ms" in str(found)


def test_waiting_counts_until_the_first_token(generated: Any) -> None:
    found = perfnb.latency(generated, [2], tokens=True, arrivals=[0.0, 0.001], budget_s=1)

    opened = found.tokens[found.tokens["run"] == "open"]
    assert opened["ttft_ms"].round(0).tolist() == [50, 109]
    assert opened["prefill_ms"].round(0).tolist() == [50, 50]
    assert found.goodput_per_s(ttft_ms=60) == pytest.approx(1 / 0.12, rel=0.01)
    assert found.goodput_per_s(ttft_ms=200, tpot_ms=1) == pytest.approx(2 / 0.12, rel=0.01)
    with pytest.raises(ValueError, match="Bounds are on ttft_ms"):
        found.goodput_per_s(ttft=3)


def test_a_streamer_skips_the_prompt_and_counts_tokens_guessed_ahead(clock: FakeClock) -> None:
    times = TokenTimes()
    times.put(torch.ones(1, 7))
    clock.pass_exactly(10)
    times.put(torch.ones(1))
    clock.pass_exactly(5)
    times.put(torch.ones(3))
    times.end()

    assert len(times) == 4
    assert (np.diff(times) / 1e6).round(1).tolist() == [5.0, 0.0, 0.0]


@pytest.mark.slow
def test_hugging_face_streams_its_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, bos_token_id=1, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config).eval()

    def answer(ids: torch.Tensor, streamer: Any = None) -> Any:
        return model.generate(ids, streamer=streamer, max_new_tokens=5, do_sample=False, pad_token_id=0)

    found = perfnb.latency(answer, [torch.ones(1, 3, dtype=torch.long)], tokens=True, budget_s=1)

    assert set(found.tokens["tokens"]) == {5}
    assert (found.tokens["ttft_ms"] < found.tokens["latency_ms"]).all()


def test_goodput_counts_what_meets_all_bounds() -> None:
    requests = pd.DataFrame({"ttft_ms": [1.0, 3.0, 1.0], "tpot_ms": pd.array([1.0, 1.0, None], dtype="Float64")})

    assert goodput(requests, 2.0, {"ttft_ms": 2.0, "tpot_ms": 2.0}) == 1.0
    assert goodput(requests, 2.0, {"tpot_ms": 0.5}) == 0.5


def test_what_gives_no_tokens_is_refused() -> None:
    with pytest.raises(TypeError, match="tokens=True needs a function that yields tokens"):
        perfnb.latency(lambda x: [x], [1], tokens=True, budget_s=0.1)
    with pytest.raises(ValueError, match="Tokens were not recorded"):
        perfnb.latency(lambda x: x, [1], budget_s=0.05).ttft_ms  # noqa: B018
    with pytest.raises(TypeError, match="Pass tokens or batch, not both"):
        perfnb.latency(lambda x: x, [1], tokens=True, batch=list)
