"""Tokens of answers: when the first came, the gaps between the others, by generators and by streamers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference.generation import cache_of
from perfnb.inference.samples import Cache
from perfnb.inference.serving import TokenTimes
from tests.fake_clock import FakeClock
from tests.inference.latency_samples import fake, words_of
from tests.inference.models import small_gpt2


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
    assert "first token after 50.0 ms" in words_of(found)


def test_answers_of_one_token_have_no_time_per_token(generated: Any) -> None:
    found = perfnb.latency(generated, [1], tokens=True, budget_s=1)

    assert math.isnan(found.tpot_ms)
    assert math.isnan(found.itl_ms)
    assert found.tokens["tpot_ms"].isna().all()
    assert "nan" not in str(found)


def test_waiting_counts_until_the_first_token(generated: Any) -> None:
    found = perfnb.latency(generated, [2], tokens=True, arrivals=[0.0, 0.001], budget_s=1)

    opened = found.tokens[found.tokens["run"] == "open"]
    assert opened["ttft_ms"].round(0).tolist() == [50, 109]
    assert opened["prefill_ms"].round(0).tolist() == [50, 50]
    assert found.goodput_per_s(ttft_ms=60) == pytest.approx(1 / 0.12, rel=0.01)
    assert found.goodput_per_s(ttft_ms=200, tpot_ms=1) == pytest.approx(2 / 0.12, rel=0.01)
    with pytest.raises(ValueError, match="Bounds must be on ttft_ms"):
        found.goodput_per_s(ttft=3)


def test_goodput_is_no_higher_than_the_rate_of_requests(generated: Any) -> None:
    found = perfnb.latency(generated, [2], tokens=True, rate_per_s=2, budget_s=10)

    assert len(found.open_run.samples) == 11
    assert found.goodput_per_s(ttft_ms=10_000) == pytest.approx(2)


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
def test_hugging_face_streams_its_tokens_and_shows_its_cache() -> None:
    model = small_gpt2(layers=2)

    def answer(ids: torch.Tensor, streamer: Any = None) -> Any:
        return model.generate(ids, streamer=streamer, max_new_tokens=5, do_sample=False, pad_token_id=0)

    found = perfnb.latency(answer, [torch.ones(1, 3, dtype=torch.long)], tokens=True, budget_s=1)

    assert set(found.tokens["tokens"]) == {5}
    assert set(found.tokens["prompt_tokens"]) == {3}
    assert (found.tokens["ttft_ms"] < found.tokens["latency_ms"]).all()
    assert found.kv_cache_bytes(100) == 2 * 2 * 100 * 16 * 4  # layers, keys and values, tokens, width, float32
    assert "key-value cache 1.75 KiB (7 tokens, and 256 B for each additional token)" in words_of(found)


def test_prefill_is_distinguished_from_decoding(clock: FakeClock) -> None:
    def answer(ids: torch.Tensor, streamer: Any) -> None:
        streamer.put(ids)
        clock.pass_exactly(30)
        streamer.put(torch.ones(1))
        clock.pass_exactly(10)
        streamer.put(torch.ones(1))

    found = perfnb.latency(answer, [torch.ones(1, 60)], tokens=True, budget_s=2)

    assert found.prompt_tokens_per_s == pytest.approx(2_000, rel=1e-3)
    assert found.output_tokens_per_s == pytest.approx(50, rel=1e-3)
    assert "prompts 2,000 tokens/s (until the first token)" in words_of(found)
    assert "Size of the key-value cache n/a: no module returned past_key_values." in words_of(found)


def tensors_of(cache: Any) -> int:
    """Return the bytes of all tensors of a cache, whatever they are."""
    if isinstance(cache, torch.Tensor):
        return cache.nbytes
    return sum(tensors_of(layer.__dict__.get(name)) for layer in cache.layers for name in ("keys", "values"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "sliding", "static"])
def test_the_cache_derived_from_one_length_is_that_of_any_other(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    options = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    window = {"sliding_window": 6, "use_sliding_window": True} if kind == "sliding" else {"sliding_window": None}
    config = transformers.MistralConfig(vocab_size=32, intermediate_size=32, **options, **window)
    model = transformers.MistralForCausalLM(config).eval()

    def cache_at(length: int) -> Any:
        made = transformers.StaticCache(config, max_cache_len=32) if kind == "static" else None
        return model(torch.ones(3, length, dtype=torch.long), past_key_values=made, use_cache=True).past_key_values

    with torch.no_grad():
        derived = cache_of(cache_at(4))
        assert not isinstance(derived, str)
        for length in (1, 4, 5, 6, 7, 20):
            assert derived.bytes_at(length) == tensors_of(cache_at(length))
        assert derived.bytes_at(20) > derived.bytes_at(4) or kind == "static"


@pytest.mark.slow
def test_the_cache_of_an_encoder_and_a_decoder_grows_by_the_decoders_part() -> None:
    transformers = pytest.importorskip("transformers")
    options = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    config = transformers.BartConfig(vocab_size=32, encoder_attention_heads=2, decoder_attention_heads=2, **options)
    model, source = transformers.BartModel(config).eval(), torch.ones(1, 9, dtype=torch.long)

    def cache_at(length: int) -> Any:
        return model(source, decoder_input_ids=torch.ones(1, length, dtype=torch.long), use_cache=True).past_key_values

    with torch.no_grad():
        derived = cache_of(cache_at(2))
        assert not isinstance(derived, str)
        other = cache_at(8)
        assert derived.bytes_at(8) == tensors_of(other.self_attention_cache) + tensors_of(other.cross_attention_cache)


def test_a_cache_that_perfnb_does_not_know_is_not_guessed(generated: Any) -> None:
    class State:
        conv_states = torch.ones(2, 3)

    assert cache_of(State()) == "its layout is unknown (State)"
    assert cache_of(((torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4)),)) == "its layout is unknown (tuple)"
    quantised = SimpleNamespace(keys=torch.ones(1, 1, 2, 4), values=torch.ones(1, 1, 2, 4), residual_length=128)
    held = SimpleNamespace(layers=[quantised], get_seq_length=lambda: 200)
    assert "it is quantised" in str(cache_of(held))

    found = perfnb.latency(generated, [2], tokens=True, budget_s=1)
    assert found.kv_cache_bytes(10) is None
    assert found.prompt_tokens_per_s is None
    assert found.tokens["prompt_tokens"].isna().all()


def test_the_size_of_a_cache_is_known_from_one_token_on() -> None:
    found = fake(np.full(9, 5.0), cache=Cache(((10, math.inf), (64, 1)), 3))

    assert [found.kv_cache_bytes(length) for length in (1, 7)] == [74, 134]
    with pytest.raises(ValueError, match="length must be a whole number of at least 1, not 0"):
        found.kv_cache_bytes(0)


def test_what_gives_no_tokens_is_refused() -> None:
    with pytest.raises(TypeError, match="Token times need a function that yields tokens"):
        perfnb.latency(lambda x: [x], [1], tokens=True, budget_s=0.1)
    with pytest.raises(ValueError, match="Tokens were not recorded"):
        perfnb.latency(lambda x: x, [1], budget_s=0.05).ttft_ms  # noqa: B018
    with pytest.raises(TypeError, match="Pass tokens or batch, not both"):
        perfnb.latency(lambda x: x, [1], tokens=True, batch=list)
