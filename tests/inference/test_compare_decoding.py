"""Speculative against plain decoding: guesses kept are counted right, answers compared, the gain has its sign."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import perfnb
from perfnb.inference.generation import watch_generation
from tests.fake_clock import FakeClock
from tests.inference.decoding_samples import decoded
from tests.inference.latency_samples import words_of
from tests.inference.models import small_gpt2

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.mark.slow
def test_guesses_are_counted_as_the_library_itself_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, assistant = small_gpt2(layers=2), small_gpt2(seed=1)
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.assistant_confidence_threshold = 4, 0.0
    settings.num_assistant_tokens_schedule = "constant"
    from transformers.generation.candidate_generator import AssistedCandidateGenerator

    kept: list[int] = []
    guessed: list[int] = []
    update, get = AssistedCandidateGenerator.update_candidate_strategy, AssistedCandidateGenerator.get_candidates

    def counted(self: Any, input_ids: Any, scores: Any, num_matches: Any) -> Any:
        kept.append(int(num_matches))
        return update(self, input_ids, scores, num_matches)

    def noted(self: Any, input_ids: Any) -> Any:
        found = get(self, input_ids)
        guessed.append(found[0].shape[1] - input_ids.shape[1])
        return found

    monkeypatch.setattr(AssistedCandidateGenerator, "update_candidate_strategy", counted)
    monkeypatch.setattr(AssistedCandidateGenerator, "get_candidates", noted)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    ids = torch.tensor([[5, 7, 11, 3]])

    seen = watch_generation(
        lambda ids, streamer: model.generate(ids, streamer=streamer, assistant_model=assistant, **options), ids
    )

    assert (seen.proposed, seen.accepted) == (sum(guessed), sum(kept))
    assert seen.passes == len(kept)
    assert 0 < sum(kept) < sum(guessed)
    plain = watch_generation(lambda ids, streamer: model.generate(ids, streamer=streamer, **options), ids)
    assert plain.tokens == seen.tokens == model.generate(ids, **options)[0, 4:].tolist()
    assert (plain.proposed, plain.accepted, plain.passes) == (0, 0, 8)


def decoding(clock: FakeClock, each_ms: float, words: str) -> Any:
    def answer(prompt: str) -> Iterator[str]:
        for word in words:
            clock.pass_exactly(each_ms)
            yield word

    return answer


def test_a_gain_has_its_sign_and_different_outputs_are_reported(clock: FakeClock, tmp_path: Path) -> None:
    found = perfnb.compare_decoding(decoding(clock, 10, "abcd"), decoding(clock, 5, "abxd"), ["p", "q"], budget_s=3)

    assert found.verdict == "faster"
    assert found.gain == pytest.approx(2, rel=1e-3)
    low, high = found.gain_interval or (0, 0)
    assert low <= found.gain <= high
    assert found.same is False
    assert found.requests["alike_tokens"].tolist() == [2, 2]
    assert found.acceptance is None  # no model was seen
    assert found.tokens_per_pass == 1
    words = words_of(found)
    faster = "Assisted decoding is faster: an answer takes 50 % less time than with plain decoding, 0.500 × ["
    assert faster in words
    assert "kept n/a: the model's cache does not reveal it" in words
    assert "2 of 2 answers differ from plain decoding, the earliest after 2 tokens." in words
    assert words.count("first 2 tokens") == 2
    assert found.to_html(tmp_path / "decoding.html").exists()


def test_random_answers_are_not_compared(clock: FakeClock) -> None:
    numbers = itertools.count()

    def random(prompt: str) -> Iterator[int]:
        clock.pass_exactly(1)
        yield next(numbers)

    found = perfnb.compare_decoding(random, decoding(clock, 1, "a"), ["p"], budget_s=1)

    assert found.same is None
    assert found.requests["same"].tolist() == [pd.NA]
    assert "Answers were not compared" in words_of(found)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="assisted must be a function that answers a request, not 3"):
        perfnb.compare_decoding(iter, 3, ["p"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Token times need a function that yields tokens"):
        perfnb.compare_decoding(lambda prompt: prompt, lambda prompt: prompt, ["p"])
    with pytest.raises(ValueError, match="requests is empty"):
        perfnb.compare_decoding(iter, iter, [])
    with pytest.raises(ValueError, match="budget_s must be a number of seconds above 0, not 0"):
        perfnb.compare_decoding(iter, iter, ["p"], budget_s=0)


@pytest.mark.parametrize(
    ("ratio", "pairs", "state", "sentence"),
    [
        (0.5, 40, "good", "Assisted decoding is faster: an answer takes 50 % less time than with plain decoding, 0.4"),
        (1.5, 40, "bad", "Assisted decoding is slower: an answer takes 50 % more time than with plain decoding, 1.5"),
        (1.0, 40, "none", "Assisted decoding takes as long as plain decoding: 0.999 × ["),
        (1.0, 6, "open", "It is not clear whether assisted decoding is faster: 0.999 × ["),
        (0.5, 4, "open", "4 pairs of answers are too few to show whether assisted decoding is faster"),
    ],
)
def test_the_verdict_is_that_of_the_pairs(ratio: float, pairs: int, state: str, sentence: str) -> None:
    verdict = decoded(ratio, pairs, noise=0.1 if state == "open" else 0.01)._document().verdict

    assert verdict.state == state
    assert verdict.sentence.startswith(sentence)
    assert verdict.next == ("Raise budget_s." if pairs == 4 else "")


def test_guesses_and_answers_are_counted() -> None:
    assert "guesses kept 50 %" in words_of(decoded(0.5))
    assert "1 of 2 answers differs from plain decoding, the earliest after 4 tokens." in words_of(decoded(0.5))
    assert "2 answers compared: all are the same." in words_of(decoded(0.5, same=True))
    assert repr(decoded(0.5)).startswith("<perfnb.DecodingComparison: assisted relative to plain: ")
    assert decoded(0.5, 4).gain_interval is None
    assert decoded(0.5).tokens_per_pass == 16 / 11
    assert "Answers were not compared" in words_of(decoded(0.5, same=None))
    own = decoded(0.5)
    unsteady = replace(own, ab=replace(own.ab, steady=False))
    told = "The answers had not reached steady state when the warm-up ended."
    assert (told in words_of(unsteady), told in words_of(own)) == (True, False)


def test_at_most_eight_answers_are_compared_as_a_share_of_the_budget_allows(clock: FakeClock) -> None:
    def answer(request: int) -> Iterator[int]:
        clock.pass_exactly(100 * request)
        yield from [1, 2]

    for budget_s, compared in ((60.0, 8), (1.0, 1)):
        found = perfnb.compare_decoding(answer, answer, [3, *[1] * 8], budget_s=budget_s)
        assert found.requests["request"].tolist() == list(range(compared))
        assert found.same
