"""What would make a step fit, in bytes reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from perfnb.memory.allocations import watched_memory
from perfnb.memory.fits import options_to_fit
from perfnb.memory.table import fitting_options, memory_summary, memory_table
from perfnb.recording.recording import ArithmeticRecord, Recording
from perfnb.recording.schema import CATEGORIES
from tests.attribution.test_arithmetic import calls_of
from tests.recordings import ByHand


def model_of_blocks(count: int = 3) -> ByHand:
    """Forward of blocks alike, each of two layers, then their backward; what is saved lies at falling addresses."""
    hand = ByHand().step(0, 1000)
    model = hand.layer("model")
    blocks = hand.layer("model.blocks", model)
    hand.call(model, 100, 500)
    for number in range(count):
        begin = 100 + 100 * number
        block = hand.layer(f"model.blocks.{number}", blocks)
        hand.modules[block]["module"] = "Block"
        hand.call(block, begin, begin + 100)
        for place, part in enumerate(("up", "down")):
            hand.call(hand.layer(f"model.blocks.{number}.{part}", block), begin + 50 * place, begin + 50 * place + 50)
            hand.op("aten::mm", begin + 50 * place + 1, begin + 50 * place + 49, 2 * number + place)
    for number in range(2 * count):
        hand.node("MmBackward0", 500 + 50 * number, 550 + 50 * number, 2 * count - 1 - number)
    return hand


def summary_fits(recording: Recording, samples: int | None = None) -> pd.DataFrame:
    watched = watched_memory(recording)
    assert watched is not None
    summary = memory_summary(watched, memory_table(watched), samples)
    assert summary is not None
    return summary.fits


def options(recording: Recording | None = None, samples: int | None = None, **known: int) -> dict[str, int]:
    alive = pd.DataFrame({"bytes": pd.Series(dtype="int64"), "category": [], "layer": [], "phase": []})
    by_category = dict.fromkeys(CATEGORIES, 0) | known
    frame = fitting_options(alive, by_category, recording or ByHand().step(0, 1).recording(), samples)
    return {str(row.option): int(row.frees_bytes) for row in frame.itertuples()}


def test_each_option_frees_what_it_says_the_greatest_first() -> None:
    frame = fitting_options(
        pd.DataFrame({"bytes": [400], "category": ["activations"], "layer": ["model"], "phase": "forward"}),
        dict(zip(CATEGORIES, (100, 101, 1000, 400, 50, 30, 7), strict=True)),
        ByHand().step(0, 1).recording(),
        8,
    )

    assert [(row.option, row.frees_bytes, row.basis) for row in frame.itertuples()] == [
        ("an optimizer without state", 1000, "computed"),
        ("half precision for the model", 600, "computed"),  # half of 1,201
        ("half the batch", 240, "estimated"),
        ("half precision for activations", 200, "estimated"),
    ]
    assert "4 samples instead of 8" in frame["detail"].iloc[2]
    assert str(frame["frees_bytes"].dtype) == "Int64"


def test_temporaries_of_the_optimizer_do_not_shrink_with_the_batch() -> None:
    alive = pd.DataFrame({"bytes": [80, 12], "category": "temporaries", "layer": "", "phase": ["optimizer", "forward"]})
    held = dict.fromkeys(CATEGORIES, 0) | {"temporaries": 92, "activations": 8}
    frame = fitting_options(alive, held, ByHand().step(0, 1).recording(), 8).set_index("option")

    assert frame.loc["half the batch", "frees_bytes"] == (12 + 8) // 2


def test_a_change_that_frees_nothing_is_not_an_option() -> None:
    assert options() == {}
    assert options(other=10_000) == {}
    assert options(optimizer_state=0, parameters=10) == {"half precision for the model": 5}
    assert options(activations=1) == {}


@pytest.mark.parametrize(
    ("samples", "batches", "words"),
    [
        (2001, 1, "shrink with the batch, 1,000 samples instead of 2,001; accumulate gradients over two batches."),
        (None, 1, "shrink with the batch; accumulate gradients over two batches."),
        (8, 2, "with the batch: 4 batches of 4 samples instead of 2 of 8; accumulate gradients over 4 batches."),
        (None, 3, "shrink with the batch; accumulate gradients over 6 batches."),
    ],
)
def test_half_a_batch_is_given_in_samples_and_batches(samples: int | None, batches: int, words: str) -> None:
    held = dict.fromkeys(CATEGORIES, 0) | {"activations": 100, "inputs": 20, "temporaries": 2}
    found = options_to_fit(held, of_optimizer=2, samples=samples, batches=batches, single=False, half=True)
    assert found["frees_bytes"].tolist() == [60]
    assert found["detail"].iloc[0].endswith(words)


@pytest.mark.parametrize(("samples", "offered"), [(None, True), (1, False), (2, True)])
def test_a_batch_of_one_sample_cannot_be_halved(samples: int | None, offered: bool) -> None:
    found = options(activations=100, inputs=20, temporaries=2, samples=samples)

    assert found.get("half the batch") == (61 if offered else None)


@pytest.mark.parametrize(("bytes_each", "offered"), [(2, False), (4, True), (8, True)])
def test_a_model_in_half_precision_is_not_offered_it(bytes_each: int, offered: bool) -> None:
    hand = ByHand().step(0, 1)
    hand.layer("model.inner", hand.layer("model"))
    hand.modules[0]["parameter_bytes"] = 10 * bytes_each

    assert options(hand.recording(), parameters=400) == ({"half precision for the model": 200} if offered else {})


@pytest.mark.parametrize(("dtype", "offered"), [("bfloat16", False), ("float16", False), ("float32", True)])
def test_arithmetic_in_half_precision_saves_activations_in_it(dtype: str, offered: bool) -> None:
    recording = ByHand().step(0, 1).recording()
    calls = calls_of(("aten::mm", 100, 10, dtype), ("aten::mm", 1, 1000, "float64"), ("aten::relu", None, 1, "x"))
    counted = replace(recording, arithmetic=ArithmeticRecord(recording.events, calls))

    assert options(counted, activations=10, samples=1) == ({"half precision for activations": 5} if offered else {})


#: The memory that the layers of each block save, in order.
SAVED = ((100, 10), (200, 20), (400, 40))


def with_saved(hand: ByHand) -> ByHand:
    for number, (up, down) in enumerate(SAVED):
        begin = 100 + 100 * number
        hand.block(begin + 10, 900, 90 - 2 * number, up).block(begin + 60, 900, 89 - 2 * number, down)
    return hand


def test_checkpointing_keeps_the_last_activation_of_each_block_and_makes_one_block_again() -> None:
    fits = summary_fits(with_saved(model_of_blocks()).recording()).set_index("option")

    whole, kept, largest = 770, 10 + 20 + 40, 440
    assert fits.loc["checkpointing", "frees_bytes"] == whole - kept - largest
    assert fits.loc["checkpointing", "basis"] == "estimated"
    assert "3 Block layers" in fits.loc["checkpointing", "detail"]
    assert fits.loc["half the batch", "frees_bytes"] == 385


def test_one_block_or_blocks_of_one_activation_need_no_checkpointing() -> None:
    hand = model_of_blocks(1).block(110, 900, 1, 100).block(160, 900, 2, 10)
    assert "checkpointing" not in summary_fits(hand.recording())["option"].tolist()

    hand = model_of_blocks().block(110, 900, 1, 100).block(210, 900, 2, 200).block(310, 900, 3, 300)
    assert "checkpointing" not in summary_fits(hand.recording())["option"].tolist()


def test_only_activations_of_blocks_alive_at_the_peak_count() -> None:
    hand = with_saved(model_of_blocks()).block(110, 390, 1, 5000)  # freed before the peak at 395
    hand.block(395, 398, 2, 6000).block(120, 900, 3, 700).known(130, 3, 700, "gradients", 0)

    fits = summary_fits(hand.recording()).set_index("option")

    assert fits.loc["checkpointing", "frees_bytes"] == 770 - 70 - 440
