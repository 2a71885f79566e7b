# SPDX-License-Identifier: Apache-2.0
"""train.py FILE: train a small network with PyTorch again and again until FILE exists; print how well it has learnt."""

import sys
from pathlib import Path

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
images, labels = torch.randn(64, 1, 24, 24), torch.randint(0, 10, (64,))
while True:
    torch.manual_seed(2)
    layers = nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(3200, 256), nn.ReLU(), nn.Linear(256, 10)
    net = nn.Sequential(*layers)
    learner = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(8):
        learner.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        learner.step()
    print("result", loss.item(), flush=True)
    if Path(sys.argv[1]).exists():
        break
