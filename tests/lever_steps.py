"""Steps that a lever makes faster, as users would write them. Each contains one planted cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Curable:
    """A step with its batches, and levers of which one makes it faster."""

    step: Callable[..., Any]
    batches: Any
    cures: tuple[str, ...]
    #: The number of torch's threads, or ``None`` for one per core.
    threads: int | None = None


def _training(model: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    loss_fn = nn.CrossEntropyLoss()

    def step() -> None:
        opt.zero_grad()
        loss_fn(model(x).flatten(0, -2), y.flatten()).backward()
        opt.step()

    return step


def cnn() -> Curable:
    """Return a small convolutional network with batch norm."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return Curable(_training(model, opt, torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))), None, ())


class Bytes(nn.Module):
    """A GPT that works on bytes."""

    def __init__(self, width: int = 128, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        layer = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        ]
        self.layers, self.head = nn.ModuleList(layer), nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, x: Tensor) -> Tensor:
        found = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            found = layer(found, src_mask=self.mask, is_causal=True)
        return self.head(found)


def gpt() -> Curable:
    """Return a byte-level GPT that is trained with AdamW and its default options."""
    model, text = Bytes(), torch.randint(0, 256, (8, 129))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Curable(_training(model, opt, text[:, :-1], text[:, 1:]), None, ())


def loop_optimizer() -> Curable:
    """Return 40 tiny layers whose 80 parameters are updated one after the other."""
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(40)])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    step = _training(model, opt, torch.randn(8, 16), torch.randint(0, 16, (8,)))
    return Curable(step, None, ("fused_optimizer", "foreach_optimizer"))


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """A dataset that takes 16 ms to create a batch of eight."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        time.sleep(0.002)
        return torch.ones(256) * (place % 7), torch.tensor(place % 10)


def slow_loader() -> Curable:
    """Return a step that waits for each batch, because the loader has no workers."""
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    opt, loss_fn = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()

    def step(batch: Any) -> None:
        x, y = batch
        opt.zero_grad()
        loss_fn(model(x), y).backward()
        opt.step()

    return Curable(step, DataLoader(Slow(), batch_size=8), ("loader_workers",))


def threads(count: int) -> Curable:
    """Return a step with too many or too few threads for the cores."""
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(6)])
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = _training(model, opt, torch.randn(256, 512), torch.randint(0, 512, (256,)))
    return Curable(step, None, ("threads",), threads=count)


def bert(eager: bool = True) -> Curable:
    """Return a small `BertModel` with attention in separate ops."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=500, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    config._attn_implementation = "eager" if eager else "sdpa"
    model = BertModel(config).eval()
    ids = torch.randint(0, 500, (8, 384))

    def step() -> Tensor:
        with torch.no_grad():
            return model(ids).last_hidden_state

    return Curable(step, None, ("attention",))


def eager_attention() -> Curable:
    """Return a GPT-2 with attention in separate ops. Unlike in `BertModel`, this can be changed after its creation."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=500, n_embd=128, n_layer=2, n_head=4, n_positions=512)
    config._attn_implementation = "eager"
    model = GPT2Model(config).eval()
    ids = torch.randint(0, 500, (8, 512))

    def step() -> Tensor:
        with torch.no_grad():
            return model(ids, use_cache=False).last_hidden_state

    return Curable(step, None, ("attention",))


def tiny_ops() -> Curable:
    """Return a step with many consecutive small operators, which compiling turns into a few."""

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(60):
                x = (x * self.scale + 0.1).sin() * 0.9
            return x

    model = Waves()
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = _training(model, opt, torch.randn(16, 64), torch.randint(0, 64, (16,)))
    return Curable(step, None, ("compile",))


#: The steps for the table of levers.
STEPS: dict[str, Callable[[], Curable]] = {
    "CNN with batch norm": cnn,
    "byte-level GPT": gpt,
    "MLP of 40 tiny layers, loop optimizer": loop_optimizer,
    "slow loader": slow_loader,
    "BertModel, small, eager attention": bert,
}
#: The steps by cause, each of which is removed by one lever.
PLANTED: dict[str, Callable[[], Curable]] = {
    "loop optimizer": loop_optimizer,
    "slow loader": slow_loader,
    "16 threads on two cores": lambda: threads(16),
    "1 thread on two cores": lambda: threads(1),
    "attention in separate ops": eager_attention,
    "many tiny ops": tiny_ops,
}
