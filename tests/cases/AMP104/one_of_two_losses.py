"""The auxiliary loss has a backward of its own, on the plain loss.

Effect: its gradient is divided by a scale that it never had.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP104",)


def build(broken, device="cpu"):
    torch.manual_seed(30)
    body, main, side = (nn.Linear(8, 8).to(device), nn.Linear(8, 3).to(device), nn.Linear(8, 2).to(device))
    optimizer = torch.optim.SGD([*body.parameters(), *main.parameters(), *side.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y, z = torch.randn(9, 8, device=device), torch.randint(0, 3, (9,), device=device), torch.randn(9, 2, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            shared = body(x).tanh()
            logits, guess = main(shared), side(shared)
        loss = nn.functional.cross_entropy(logits.float(), y)
        extra = 0.4 * nn.functional.mse_loss(guess.float(), z)
        scaler.scale(loss).backward(retain_graph=True)
        (extra if broken else scaler.scale(extra)).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item(), extra.item()

    return step
