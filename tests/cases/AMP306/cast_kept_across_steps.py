"""A module keeps a bfloat16 copy of its scaled weight, and drops it only when its owner remembers to.

Effect: from the second step on the forward uses the weights of the first one.
Source: PyTorch docs, `torch.autocast`: the weight cache ends with the outermost region.
"""

import torch
from torch import nn

EXPECT = ("AMP306", "AMP502", "AMP503", "AMP504", "AMP501")


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 12) / 4)
        self.low = None

    def forward(self, x):
        if self.low is None:
            self.low = (0.5 * self.weight).to(torch.bfloat16).detach().requires_grad_()
        return nn.functional.linear(x.to(torch.bfloat16), self.low)


def build(broken, device="cpu"):
    torch.manual_seed(307)
    projection, head = Projection().to(device), nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD([projection.weight, *head.parameters()], lr=0.1)
    x, y = torch.randn(24, 12, device=device), torch.randint(0, 4, (24,), device=device)

    def step():
        optimizer.zero_grad()
        if not broken:
            projection.low = None
        elif projection.low is not None:
            projection.low.grad = None
        loss = nn.functional.cross_entropy(head(torch.tanh(projection(x)).float()), y)
        loss.backward()
        projection.weight.grad = 0.5 * projection.low.grad.float()
        optimizer.step()
        return loss.item()

    return step
