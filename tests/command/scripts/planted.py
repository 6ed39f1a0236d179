"""A training whose samples take a millisecond to make, and whose optimizer updates one parameter after the other."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 4 * 600

    def __getitem__(self, place):
        time.sleep(0.001)
        return torch.randn(64, generator=torch.Generator().manual_seed(place)), place % 10


torch.manual_seed(1)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
loader = DataLoader(Images(), batch_size=4, shuffle=True)
seen = []
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seen += y.tolist()
print("samples", len(seen), "of each", {seen.count(number) for number in range(10)})
