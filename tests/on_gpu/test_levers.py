"""Levers on a GPU: each is applied, computes what it should, and leaves nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perfnb.bench.values import NOISE, REDUCED, SAME
from perfnb.remedies.lever import prepared
from perfnb.remedies.levers import by_name
from perfnb.remedies.state import untouched
from perfnb.remedies.subject import find_subject
from perfnb.remedies.values import check, measure_yardstick
from perfnb.step.namespace import namespace_of
from tests.on_gpu.steps import Transformer, convnet, images, tokens, training


def _transformer() -> Callable[[], Any]:
    return training(Transformer(2).cuda(), tokens())


def _convolutions() -> Callable[[], Any]:
    return training(convnet().cuda(), images())


KEPT, LOWER = {SAME, NOISE}, {REDUCED}
LEVERS: dict[str, tuple[Callable[[], Callable[[], Any]], set[str]]] = {
    "compile": (_transformer, KEPT | LOWER),
    "compile_reduce_overhead": (_transformer, KEPT | LOWER),
    "autocast": (_transformer, LOWER),
    "autocast_float16": (_transformer, LOWER),
    "float32_precision": (_transformer, LOWER),
    "fused_optimizer": (_transformer, KEPT),
    "sdpa_math": (_transformer, KEPT),
    "channels_last": (_convolutions, KEPT),
    "cudnn_benchmark": (_convolutions, KEPT),
}


@pytest.mark.parametrize("name", LEVERS)
def test_a_lever_computes_what_it_should_and_is_undone(name: str) -> None:
    make, expected = LEVERS[name]
    step = make()
    step()  # the optimizer has its state
    subject, lever = find_subject(step, None, namespace_of(step)), by_name()[name]
    assert lever.refuses(subject) == ""
    with untouched(subject):
        yardstick = measure_yardstick(subject)
        with prepared(lever, subject, 0.0) as one:
            values = check([one], subject, yardstick)
    assert values.verdict in expected, values


def test_the_counts_of_a_fused_optimizer_are_on_the_gpu_only_while_it_is_on() -> None:
    step = _transformer()
    step()
    subject = find_subject(step, None, namespace_of(step))
    (optimizer,) = subject.optimizers.values()

    def devices() -> set[str]:
        return {state["step"].device.type for state in optimizer.state.values()}

    assert devices() == {"cpu"}
    with by_name()["fused_optimizer"].prepared(subject) as switch:
        with switch():
            assert devices() == {"cuda"}
            step()
            torch.cuda.synchronize()
        assert devices() == {"cpu"}
