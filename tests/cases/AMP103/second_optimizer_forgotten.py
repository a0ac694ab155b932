"""Two optimizers share a loss; the one for the embedding was added later and is stepped directly.

Effect: the embedding moves by gradients that are 4096 times too large.
Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
"""

import torch
from torch import nn

EXPECT = ("AMP103",)


def build(broken, device="cpu"):
    torch.manual_seed(23)
    table, head = nn.Embedding(20, 8).to(device), nn.Linear(8, 5).to(device)
    dense = torch.optim.AdamW(head.parameters(), lr=1e-3)
    lookup = torch.optim.SGD(table.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    words, y = torch.randint(0, 20, (9, 4), device=device), torch.randint(0, 5, (9,), device=device)

    def step():
        for optimizer in (dense, lookup):
            optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            logits = head(table(words).mean(1))
        loss = nn.functional.cross_entropy(logits.float(), y)
        scaler.scale(loss).backward()
        scaler.step(dense)
        if broken:
            lookup.step()
        else:
            scaler.step(lookup)
        scaler.update()
        return loss.item()

    return step
