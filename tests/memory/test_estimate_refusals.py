"""What `estimate_memory` cannot work with is refused in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from perfnb.errors import CaptureError
from perfnb.memory.estimate.estimate import estimate_memory
from perfnb.memory.estimate.fake_tensors import explained, pretending
from perfnb.memory.estimate.model_step import model_step

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_invalid_models_losses_and_sizes_are_refused() -> None:
    batch = torch.ones(2, 4)
    with pytest.raises(TypeError, match="model must be a torch module, not int"):
        estimate_memory(3, batch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="loss must be a function such as"):
        estimate_memory(nn.Linear(4, 4), batch, loss="mse")  # type: ignore[arg-type]
    for training in (True, False):
        with pytest.raises(TypeError, match="loss must be a function such as"):
            model_step(nn.Linear(4, 4), batch, "mse", training=training)  # type: ignore[arg-type]
    for wrong in ("8GiB", -1, float("nan")):
        with pytest.raises(ValueError, match="bytes must be a non-negative number"):
            estimate_memory(nn.Linear(4, 4), batch).largest_batch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("forward", "says"),
    [(lambda h: h[h > 0].sum(), "nonzero"), (lambda h: h * h.sum().item(), r"\.item\(\)"),
     (lambda h: h + float(h.detach().numpy().sum()), "its code")],
)  # fmt: skip
def test_what_depends_on_numbers_is_refused_in_one_sentence(forward: Callable[[Tensor], Tensor], says: str) -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self.linear(x))

    model = nn.Sequential(nn.Linear(4, 4), Picky())

    with pytest.raises(CaptureError, match=rf"{says}.* in 1 \(Picky\) depends on the values"):
        estimate_memory(model, torch.randn(2, 4))


@pytest.mark.parametrize(
    ("argument", "wrong", "error", "says"),
    [
        ("batch_size", float("inf"), ValueError, "batch_size must be a whole number of at least 1, not inf"),
        ("batch_size", "4", ValueError, "batch_size must be a whole number of at least 1, not '4'"),
        ("device", "gpu", ValueError, "device must be cpu or cuda, not 'gpu'"),
        ("device", -1, ValueError, "device must be cpu or cuda, not -1"),
        ("device", "cuda:x", ValueError, "device must be cpu or cuda, not 'cuda:x'"),
        ("training", "no", TypeError, "training must be True or False, not 'no'"),
        ("autocast", "bfloat16", TypeError, "autocast must be a dtype such as torch.bfloat16, not 'bfloat16'"),
        ("autocast", True, TypeError, "autocast must be a dtype such as torch.bfloat16, not True"),
    ],
)
def test_an_argument_that_is_none_is_refused_in_one_sentence(
    argument: str, wrong: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        estimate_memory(nn.Linear(4, 4), torch.ones(2, 4), **{argument: wrong})


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_in_one_sentence(kind: type[nn.Module]) -> None:
    model, ids = kind(1000, 8, sparse=True), torch.randint(1000, (4, 5))
    optimizer = torch.optim.SparseAdam(model.parameters())

    def step(ids: Tensor) -> None:
        model(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for estimate in (lambda: estimate_memory(step=step, batch=ids), lambda: estimate_memory(model, ids, optimizer)):
        with pytest.raises(CaptureError, match=r"a sparse tensor of 1000 × 8\. Estimate it with dense gradients"):
            estimate()
    step(ids)  # and it continues


def test_what_has_no_parameters_yet_is_refused_and_stays_so() -> None:
    model = nn.LazyLinear(8)

    with pytest.raises(CaptureError, match="LazyLinear has no parameters yet"):
        estimate_memory(model, torch.randn(2, 4))

    assert model(torch.randn(2, 4)).shape == (2, 8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_refused_in_one_sentence() -> None:
    with pytest.raises(CaptureError, match="is a scripted module, whose memory cannot be estimated"):
        estimate_memory(torch.jit.script(nn.Linear(4, 4)), torch.randn(2, 4))


class Raising(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(
    ("raised", "error", "says"),
    [
        (UnsupportedOperatorException("mine.op"), CaptureError, "uses mine.op, which has no fake kernel"),
        (RuntimeError("Storage size calculation overflowed with sizes"), OverflowError, "than can be counted"),
        (RuntimeError("numel: integer multiplication"), OverflowError, "than can be counted"),
        (RuntimeError("Cannot access data pointer of Tensor"), CaptureError, "its code in .* depends on the values"),
        (RuntimeError("out of luck"), RuntimeError, "^out of luck$"),
        (ValueError("overflow"), ValueError, "^overflow$"),
    ],
)
def test_an_error_that_a_fake_tensor_causes_is_explained_and_any_other_is_the_users(
    raised: Exception, error: type[Exception], says: str
) -> None:
    model = nn.Sequential(nn.Identity(), Raising(raised))

    def step(model: nn.Module = model) -> None:
        with explained(None):
            model(torch.ones(1))

    with pytest.raises(error, match=says) as found, explained(model):
        model(torch.ones(1))
    if "overflow" not in str(raised) and error is CaptureError:
        assert "1 (Raising)" in str(found.value)
        with pytest.raises(error, match=rf"{'' if 'mine' in says else 'in '}line \d+ of forward "):
            step()
        of_library: dict[str, Any] = {}
        exec(compile("def forward(self, x): raise self.error", nn.__file__, "exec"), of_library)
        called = type("Library", (Raising,), of_library)(raised.with_traceback(None))
        with pytest.raises(error, match=r"Library, which is called in line \d+ of step "):
            step(called)


@pytest.mark.parametrize("silent", [False, True])
def test_settings_of_torch_are_restored_after_a_simulated_step(silent: bool) -> None:
    log, layers = logging.getLogger("torch._subclasses.fake_tensor"), torch.backends.mha
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    log.disabled = silent
    try:
        with suppress(ZeroDivisionError), pretending():
            torch.rand(5)
            assert (log.disabled, layers.get_fastpath_enabled()) == (True, False)
            raise ZeroDivisionError
        assert (log.disabled, layers.get_fastpath_enabled()) == (silent, True)
    finally:
        log.disabled = False
    assert torch.rand(1) == expected
