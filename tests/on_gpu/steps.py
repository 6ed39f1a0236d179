"""Training steps on a GPU, of many kinds, and planted truths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Step = Callable[[], Any]


class Sleeping(nn.Module):
    """The identity, whose forward and backward keep the GPU busy for some milliseconds."""

    def __init__(self, sleep: Callable[[float], None], forward_ms: float = 0.0, backward_ms: float = 0.0) -> None:
        super().__init__()
        self.sleep, self.forward_ms, self.backward_ms = sleep, forward_ms, backward_ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleep.apply(x, self.sleep, self.forward_ms, self.backward_ms)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sleep: Callable[[float], None], forward_ms: float, backward_ms: float
    ) -> torch.Tensor:
        ctx.sleep, ctx.ms = sleep, backward_ms
        if forward_ms:
            sleep(forward_ms)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ctx.ms:
            ctx.sleep(ctx.ms)
        return gradients[0] * 1.0, None, None, None


class Attention(nn.Module):
    """A transformer's block with PyTorch's attention."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """Some blocks; the middle ones recomputed in backward if asked for."""

    def __init__(self, blocks: int = 4, *, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(blocks))
        self.head, self.recompute = nn.Linear(256, 64), recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def convnet() -> nn.Module:
    """Convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def training(
    model: nn.Module, x: torch.Tensor, *, fused: bool | None = None, autocast: torch.dtype | None = None
) -> Step:
    """Return a training step with AdamW on the mean square of the output."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", autocast, enabled=autocast is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def tokens() -> torch.Tensor:
    return torch.randn(8, 256, 256, device="cuda")


def images() -> torch.Tensor:
    return torch.randn(32, 3, 64, 64, device="cuda")


def _graphed() -> Step:
    model = torch.cuda.make_graphed_callables(Transformer().cuda(), (tokens(),))
    return training(model, tokens())


def _sdpa(backend: Any) -> Callable[[], Step]:
    def make() -> Step:
        plain = training(Transformer().cuda(), tokens(), autocast=torch.bfloat16)

        def step() -> None:
            with torch.nn.attention.sdpa_kernel(backend):
                plain()

        return step

    return make


_Backend = torch.nn.attention.SDPBackend
#: Each kind of step, made on the GPU.
KINDS: dict[str, Callable[[], Step]] = {
    "transformer": lambda: training(Transformer().cuda(), tokens()),
    "checkpointing": lambda: training(Transformer(recompute=True).cuda(), tokens()),
    "bf16 autocast": lambda: training(Transformer().cuda(), tokens(), autocast=torch.bfloat16),
    "fused optimizer": lambda: training(Transformer().cuda(), tokens(), fused=True),
    "convolutions": lambda: training(convnet().cuda(), images()),
    "channels last": lambda: training(
        convnet().cuda().to(memory_format=torch.channels_last), images().to(memory_format=torch.channels_last)
    ),
    "compiled": lambda: training(torch.compile(Transformer().cuda()), tokens()),  # type: ignore[arg-type]
    "CUDA graphs": _graphed,
    "flash attention": _sdpa(_Backend.FLASH_ATTENTION),
    "attention in plain ops": _sdpa(_Backend.MATH),
    "memory-efficient attention": _sdpa(_Backend.EFFICIENT_ATTENTION),
}
