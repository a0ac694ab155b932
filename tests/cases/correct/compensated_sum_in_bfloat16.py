"""bfloat16 weights whose optimizer carries what rounding leaves over to the next step (Kahan summation).

The trap: "16-bit weights" (AMP307, AMP403) and "16-bit state" (AMP401, AMP402). Right: nothing is lost, and the buffer of what is
left over has the dtype of the weights by nature; the momentum is FP32.
"""

import torch
from torch import nn

EXPECT = ()
QUIET = ("AMP307", "AMP401", "AMP402", "AMP403")


class CompensatedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p, dtype=torch.float32)
                    state["left_over"] = torch.zeros_like(p)
                state["momentum"].mul_(0.9).add_(p.grad.float())
                left_over, before = state["left_over"], p.clone()
                left_over.copy_(left_over.float() - group["lr"] * state["momentum"])
                p.add_(left_over)
                left_over.add_(before - p)


def build(device="cpu"):
    torch.manual_seed(401)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8)).to(device, torch.bfloat16)
    optimizer = CompensatedSGD(model.parameters(), lr=1e-2)
    x = torch.randn(16, 16, device=device, dtype=torch.bfloat16)
    y = torch.randint(0, 8, (16,), device=device)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
