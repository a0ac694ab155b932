"""A language model's vocabulary has the size that the tokenizer happened to have.

Effect: the largest product of the model, and its two backward products, miss the tensor cores' multiple of 8.
Source: NVIDIA, "Deep Learning Performance Guide".
"""

import torch
from torch import nn

EXPECT = ("AMP602", "AMP603")


def build(broken, device="cpu"):
    torch.manual_seed(602)
    vocabulary = 257 if broken else 264
    model = nn.Sequential(nn.Embedding(vocabulary, 32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, vocabulary)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    tokens = torch.randint(0, 257, (4, 9), device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
