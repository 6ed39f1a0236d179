"""A GPT over bytes that fetches random windows itself, without a loader, in the style of nanoGPT. All is global."""

import torch
import torch.nn as nn
from torch.nn import functional as F

torch.manual_seed(1337)
torch.set_num_threads(1)
batch_size, block_size, n_embd, n_head, n_layer = 2, 16, 16, 2, 2
max_iters, eval_interval = 60, 25
data = torch.tensor(list(b"to be or not to be, that is the question: " * 40))


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in ix])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, n_head, -1).transpose(1, 2) for z in self.attn(self.ln_1(x)).split(n_embd, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(256, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.lm_head = nn.Linear(n_embd, 256, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(self.h(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for iteration in range(max_iters):
    if iteration % eval_interval == 0:
        with torch.no_grad():
            print(f"step {iteration}: loss {sum(model(*get_batch())[1].item() for _ in range(3)) / 3:.4f}")
    _, loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print(f"final loss {loss.item():.6f}")
