"""Names that the README's code assumes."""

import copy
import time

import torch
from torch import nn

import perfnb

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = (torch.randn(32, 16), torch.randint(4, (32,)))
loader = [batch] * 8
model_of_before, model_of_after = copy.deepcopy(model), copy.deepcopy(model)


def steps_of(trained):
    own = torch.optim.SGD(trained.parameters(), lr=0.01)

    def train_step(batch):
        own.zero_grad()
        loss = loss_fn(trained(batch[0]), batch[1])
        loss.backward()
        own.step()
        return loss.detach()

    return train_step


before, after = steps_of(model_of_before), steps_of(model_of_after)
mlp, cnn, vit = (
    model,
    nn.Sequential(nn.Unflatten(1, (1, 16)), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(56, 4)),
    nn.Linear(16, 4),
)


def make_step(size):
    x, w = torch.randn(size, 64), torch.randn(64, 64)
    return lambda: x @ w


def evaluate(model):
    return float(loss_fn(model(batch[0]), batch[1]))


def train(model, loader):
    time.sleep(0.7)
    for batch in loader:
        loss_fn(model(batch[0]), batch[1]).backward()


before_profile = perfnb.profile_step(before, loader)
after_profile = perfnb.profile_step(after, loader)
