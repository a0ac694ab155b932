"""Layers keep their 16-bit copies for the length of a step, and the pass that makes pseudo-labels fills them without gradients.

Effect: the first layers, which nothing with a gradient goes into, are never trained; the head is.
Source: PyTorch docs, `torch.autocast`: the weight cache; the copies that autocast itself keeps are apart for such passes.
"""

import torch
from torch import nn

EXPECT = ("AMP306",)


class Kept(nn.Linear):
    copies = None

    def forward(self, x):
        key = torch.is_grad_enabled() or self.shared
        if key not in self.copies:
            self.copies[key] = self.weight.to(torch.bfloat16)
        return nn.functional.linear(x.to(torch.bfloat16), self.copies[key], self.bias.to(torch.bfloat16).detach())


def build(broken, device="cpu"):
    torch.manual_seed(306)
    body = nn.Sequential(Kept(16, 32), nn.ReLU(), Kept(32, 16)).to(device)
    head = nn.Linear(16, 8).to(device)
    kept = [body[0], body[2]]
    for layer in kept:
        layer.shared, layer.copies = broken, {}
        layer.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW([*(layer.weight for layer in kept), *head.parameters()], lr=1e-3)
    x, noise = torch.randn(16, 16, device=device), 0.1 * torch.randn(16, 16, device=device)

    def step():
        optimizer.zero_grad()
        for layer in kept:
            layer.copies.clear()
        # autocast's own cache has no part in this (torch 2.4 filled it without gradients)
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            with torch.no_grad():
                labels = head(body(x)).argmax(-1)
            logits = head(body(x + noise))
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
