"""Answers observed while they are generated: caches made by hand, and guessed tokens that were kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfnb.inference.generation import NO_CACHE, cache_of, watch_generation


def layer_of(tokens: int, width: int = 4, **attributes: Any) -> SimpleNamespace:
    """Return a layer whose keys take 8 * width bytes per token, and whose values take 8 bytes more."""
    keys, values = torch.ones(1, 2, tokens, width), torch.ones(1, 2, tokens, width + 1)
    return SimpleNamespace(keys=keys, values=values, **attributes)


def of_layers(length: int, *layers: Any, **attributes: Any) -> SimpleNamespace:
    return SimpleNamespace(layers=list(layers), get_seq_length=lambda: length, **attributes)


def bytes_at(cache: Any, *lengths: int) -> list[int]:
    found = cache_of(cache)
    assert not isinstance(found, str), found
    return [found.bytes_at(length) for length in lengths]


def test_layers_that_hold_all_tokens_grow_with_the_answer() -> None:
    assert bytes_at(of_layers(3, layer_of(3), layer_of(3, width=5)), 1, 3, 10) == [160, 480, 1600]


def test_a_layer_with_a_sliding_window_grows_until_the_window_is_full() -> None:
    # The newest token is added to the other four of the window.
    sliding = layer_of(3, sliding_window=5, is_sliding=True)

    assert bytes_at(of_layers(3, sliding), 3, 4, 5, 100) == [216, 288, 288, 288]
    full = layer_of(4, sliding_window=5, is_sliding=True)
    assert bytes_at(of_layers(30, full), 3, 100) == [216, 288]


@pytest.mark.parametrize("attributes", [{"sliding_window": 5}, {"sliding_window": 5, "is_sliding": False}])
def test_a_window_that_does_not_slide_does_not_limit_a_layer(attributes: dict[str, Any]) -> None:
    assert bytes_at(of_layers(3, layer_of(3, **attributes)), 100) == [7200]


def test_a_layer_that_was_allocated_at_full_size_does_not_grow() -> None:
    assert bytes_at(of_layers(3, layer_of(8, max_cache_len=8)), 1, 8) == [576, 576]
    window = layer_of(8, max_cache_len=8, sliding_window=5, is_sliding=True)
    assert bytes_at(of_layers(3, window), 1, 8) == [576, 576]


def test_the_lists_of_keys_and_values_of_earlier_versions_are_read() -> None:
    layer = layer_of(3)
    cache = SimpleNamespace(key_cache=[layer.keys] * 2, value_cache=[layer.values] * 2, get_seq_length=lambda: 3)

    assert bytes_at(cache, 3, 4) == [432, 576]


@pytest.mark.parametrize("tokens", [2, 4])
def test_a_layer_with_another_number_of_tokens_is_not_guessed(tokens: int) -> None:
    found = cache_of(of_layers(3, layer_of(3), layer_of(tokens)))

    assert found == f"a layer contains {tokens} of 3 tokens, for a reason that perfnb cannot determine"


@pytest.mark.parametrize("name", ["keys", "values"])
@pytest.mark.parametrize(
    "odd",
    [
        None,
        SimpleNamespace(dim=lambda: 4, numel=lambda: 24, nbytes=96, shape=(1, 2, 3, 4)),
        torch.ones(2, 3, 4),
        torch.ones(1, 1, 2, 3, 4),
        torch.ones(1, 2, 3, 0),
    ],
)
def test_a_layer_without_tensors_of_four_dimensions_is_unknown(name: str, odd: Any) -> None:
    layer = layer_of(3)
    setattr(layer, name, odd)

    assert cache_of(of_layers(3, layer_of(3), layer)) == "its layout is unknown (SimpleNamespace)"


def test_a_cache_that_is_empty_or_of_unknown_length_is_unknown() -> None:
    unknown = "its layout is unknown (SimpleNamespace)"

    assert cache_of(of_layers(0, layer_of(3))) == unknown
    assert cache_of(of_layers(3)) == unknown
    assert cache_of(SimpleNamespace(layers=[layer_of(3)])) == unknown


def test_a_part_for_the_encoders_output_does_not_grow() -> None:
    def cache(own: Any, other: Any) -> Any:
        return SimpleNamespace(self_attention_cache=own, cross_attention_cache=other, get_seq_length=lambda: 77)

    assert bytes_at(cache(of_layers(3, layer_of(3)), of_layers(9, layer_of(9), layer_of(9))), 1, 10) == [1368, 2016]
    assert bytes_at(cache(of_layers(3, layer_of(3)), of_layers(0)), 10) == [720]
    found = cache_of(cache(of_layers(3, layer_of(3)), of_layers(9, layer_of(9))))
    assert not isinstance(found, str)
    assert found.length == 3
    assert cache_of(cache(of_layers(0), of_layers(9, layer_of(9)))) == "its layout is unknown (SimpleNamespace)"


class Model(torch.nn.Module):
    """Returns a cache that contains the given number of tokens."""

    def forward(self, length: int | None) -> Any:
        cache = None if length is None else of_layers(length, layer_of(length))
        return SimpleNamespace(past_key_values=cache)


def generating(prompt: int, *passes: tuple[int | None, int]) -> Callable[..., None]:
    """Return a function that streams tokens: for each pass, the length of the cache and the number of tokens."""
    model = Model()

    def answer(request: Any, streamer: Any) -> None:
        streamer.put(torch.ones(1, prompt))
        for length, tokens in passes:
            model(length)
            streamer.put(torch.full((tokens,), 7))
        streamer.end()

    return answer


def test_guesses_are_the_tokens_that_a_pass_processed_beyond_those_that_were_known() -> None:
    # The first pass processes the prompt of 5 and 4 guesses, of which 2 are kept, and adds a token of its own. With the
    # prompt, 8 are known. Then all of 3 guesses are kept, and finally none of 1.
    seen = watch_generation(generating(5, (9, 3), (11, 4), (13, 1)), None)

    assert (seen.passes, seen.proposed, seen.accepted) == (3, 4 + 3 + 1, 2 + 3 + 0)
    assert seen.tokens == [7] * 8
    assert not isinstance(seen.cache, str)
    assert (seen.cache.length, seen.cache.bytes_at(1)) == (13, 72)


def test_plain_decoding_guesses_nothing() -> None:
    seen = watch_generation(generating(5, (5, 1), (6, 1)), None)

    assert (seen.passes, seen.proposed, seen.accepted) == (2, 0, 0)


@pytest.mark.parametrize(
    "passes",
    [
        [(None, 1), (6, 1)],  # the first pass shows no cache
        [(5, 1), (5, 1)],  # the cache has fewer tokens than are known
        [(5, 2)],  # more tokens than were processed
    ],
)
def test_guesses_that_the_cache_contradicts_are_unknown(passes: list[tuple[int | None, int]]) -> None:
    seen = watch_generation(generating(5, *passes), None)

    assert seen.passes == len(passes)
    assert (seen.proposed, seen.accepted) == (None, None)


def test_an_answer_without_tokens_has_no_passes_and_no_cache() -> None:
    seen = watch_generation(generating(5), None)

    assert (seen.tokens, seen.passes, seen.proposed, seen.accepted, seen.cache) == ([], 0, None, None, NO_CACHE)


def test_tokens_that_are_yielded_are_kept_as_they_are() -> None:
    def answer(request: str) -> Iterator[str]:
        yield from ["a", "", request]

    seen = watch_generation(answer, "b")

    assert (seen.tokens, seen.passes) == (["a", "b"], 2)
    assert (seen.proposed, seen.accepted) == (None, None)


def test_modules_are_no_longer_watched_after_an_error() -> None:
    class Output:
        asked = 0

        @property
        def past_key_values(self) -> None:
            self.asked += 1

    class Passes(torch.nn.Module):
        def forward(self, output: Output) -> Output:
            return output

    model, output = Passes(), Output()

    def fails(request: str) -> Iterator[str]:
        model(output)
        raise ValueError(request)
        yield request

    with pytest.raises(ValueError, match="b"):
        watch_generation(fails, "b")

    assert output.asked == 1
    model(output)
    assert output.asked == 1
