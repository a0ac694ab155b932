"""A tensor hook on an activation clamps the gradient that flows through it, with a threshold meant for unscaled gradients.

Effect: the recurrent gradient is cut at 0.01 / scale.
Source: PyTorch docs, `torch.Tensor.register_hook`, and "Working with Unscaled Gradients".
"""

import torch
from torch import nn

EXPECT = ("AMP102",)


def build(broken, device="cpu"):
    torch.manual_seed(4)
    cell, head = nn.Linear(12 + 6, 12).to(device), nn.Linear(12, 4).to(device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=512.0)
    frames, y = torch.randn(3, 9, 6, device=device), torch.randint(0, 4, (9,), device=device)

    def gentle(grad):
        limit = 0.01 * (1.0 if broken else scaler.get_scale())
        return grad.clamp(-limit, limit)

    def step():
        optimizer.zero_grad()
        state = torch.zeros(9, 12, device=device)
        with torch.autocast(device, dtype=torch.float16):
            for frame in frames:
                state = cell(torch.cat([state, frame], 1)).tanh()
                state.register_hook(gentle)
            logits = head(state)
        loss = nn.functional.cross_entropy(logits.float(), y) * 3
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
