"""After model.half() only the parameters are brought back to FP32; a BatchNorm of one's own casts its statistics up and down.

Effect: what the running mean and variance gain in a step is rounded away; the kernel itself sees FP32.
Source: Micikevicius et al., "Mixed Precision Training", 2018, section 4.
"""

import torch
from torch import nn

EXPECT = ("AMP307", "AMP301", "AMP506")


class Careful(nn.BatchNorm1d):
    def forward(self, x):
        mean, variance = self.running_mean.float().clone(), self.running_var.float().clone()
        out = nn.functional.batch_norm(x.float(), mean, variance, self.weight, self.bias, True, self.momentum, self.eps)
        with torch.no_grad():
            self.running_mean.copy_(mean.clone())
            self.running_var.copy_(variance.clone())
        return out


def build(broken, device="cpu"):
    torch.manual_seed(307)
    model = nn.Sequential(nn.Linear(16, 32), Careful(32, momentum=0.01), nn.ReLU(), nn.Linear(32, 8)).to(device)
    if broken:
        model.half()
        for p in model.parameters():
            p.data = p.data.float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = torch.randn(32, 16, device=device) + 1, torch.randint(0, 8, (32,), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
