"""What the checks of lab 4 run: small networks whose memory is counted or measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perfnb import profile_step
from perfnb.labs.answers import as_number, outcome
from perfnb.labs.exercise import Facts, Hint
from perfnb.labs.workloads import agree


def trial(name: str) -> tuple[Any, Any]:
    """A model to test the rule on, and a batch for it."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(24, 24), nn.BatchNorm1d(24) if "normal" in name else nn.ReLU(), nn.Linear(24, 24))
    model.append(nn.Linear(24, 7))
    if "frozen" in name:
        model[0].requires_grad_(False)
    if "share" in name:
        model[2].weight = model[0].weight
    dtype = torch.bfloat16 if "bfloat16" in name else torch.float32
    return model.to(dtype), torch.randn(5, 24, dtype=dtype)


def trained_bytes(name: str) -> tuple[dict[str, int], int]:
    """Bytes that a model keeps after a step with Adam, and the bytes of Adam's step counters."""
    import torch

    model, x = trial(name)
    adam = torch.optim.Adam(model.parameters())
    model(x).float().square().mean().backward()
    adam.step()
    parameters = list(model.parameters())
    state = [(key, kept) for entry in adam.state.values() for key, kept in entry.items()]
    wanted = {
        "parameters": sum(kept.nbytes for kept in (*parameters, *model.buffers())),
        "gradients": sum(kept.grad.nbytes for kept in parameters if kept.grad is not None),
        "optimizer_state": sum(kept.nbytes for key, kept in state if key != "step"),
    }
    return wanted, sum(kept.nbytes for key, kept in state if key == "step")


def saved_bytes(batch: int, widths: Sequence[int], activation: str) -> int:
    """Bytes that autograd saves for such a network's backward pass, not counting the batch and the weights."""
    import torch
    from torch import nn

    between = {"relu": nn.ReLU, "gelu": nn.GELU}[activation]
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), between()]
    network, x = nn.Sequential(*layers[:-1]), torch.randn(batch, widths[0])
    there = {tensor.untyped_storage().data_ptr() for tensor in (x, *network.parameters())}
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        saved[tensor.untyped_storage().data_ptr()] = tensor  # kept alive, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = network(x)
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for place, tensor in saved.items() if place not in there)


def measured_peak(step: Callable[[], Any]) -> int:
    """Peak bytes alive in a step, without what others in this process hold."""
    memory = profile_step(step, steps=1, warmup=1, traced=1, flops=False).memory
    return int((memory["total"] - memory["other"]).max())


def trained(tower: Any, x: Any) -> tuple[Any, list[Any]]:
    """The output, and the gradients of the weights and, if it needs one, of the input."""
    import torch

    tower.zero_grad()
    x.grad = None
    output = outcome(tower, x)
    if not isinstance(output, torch.Tensor) or not output.requires_grad:
        return output, []
    outcome(output.float().square().mean().backward)
    return output, [part.grad for part in (*tower.parameters(), x) if part.requires_grad]


def same_training(old: Any, new: Any, x: Any) -> Facts:
    """Whether two towers give the same output and gradients for `x`, and leave `x` unchanged."""
    kept = x.detach().clone()
    wanted, gradients = trained(old, x)
    wanted_gradients = [gradient.clone() for gradient in gradients]
    got, gradients = trained(new, x)
    return {
        "rows": len(x),
        "returned": type(got).__name__,
        "forward": hasattr(got, "detach") and agree(wanted, got) and agree(kept, x),
        "backward": len(gradients) == len(wanted_gradients)
        and all(one is not None and agree(two, one) for one, two in zip(gradients, wanted_gradients, strict=True)),
    }


def monitored(monitor_of: Callable[..., Any], inputs: Iterable[Any]) -> tuple[list[float], Any, Callable[[Any], None]]:
    """What a monitor recorded over some steps, the final weights, and the step."""
    import torch
    from torch import nn

    torch.manual_seed(8)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    monitor = outcome(monitor_of, net[1])

    def step(x: Any) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    for x in inputs:
        outcome(step, x)
    kept = getattr(monitor, "strengths", None)
    if not isinstance(kept, Iterable):
        raise Hint("The monitor no longer has a list called strengths.")
    numbers = (value.detach() if isinstance(value, torch.Tensor) else value for value in kept)
    strengths = [as_number(value, "A value in strengths") for value in numbers]
    return strengths, torch.cat([part.detach().flatten() for part in net.parameters()]), step
