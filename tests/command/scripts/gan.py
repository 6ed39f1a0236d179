"""A GAN with an optimizer for each of its two networks, in the style of PyTorch's DCGAN example, on made-up data."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

nz = 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, 16), nn.ReLU(True), nn.Linear(16, 64), nn.Tanh())

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, input):
        return self.main(input).flatten()


if __name__ == "__main__":
    torch.manual_seed(999)
    torch.set_num_threads(1)
    dataloader = DataLoader(TensorDataset(torch.randn(480, 64)), batch_size=8, shuffle=True)
    netG, netD = Generator(), Discriminator()
    criterion = nn.BCELoss()
    optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
    optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
    for i, (real,) in enumerate(dataloader):
        # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        errD_real = criterion(netD(real), torch.ones(len(real)))
        errD_real.backward()
        fake = netG(torch.randn(len(real), nz))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(len(real)))
        errD_fake.backward()
        optimizerD.step()

        # (2) Update G network: maximize log(D(G(z)))
        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(len(real)))
        errG.backward()
        optimizerG.step()
        if i % 20 == 0:
            print(f"[{i}/{len(dataloader)}] Loss_D: {(errD_real + errD_fake).item():.6f} Loss_G: {errG.item():.6f}")
