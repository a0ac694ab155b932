"""DistributedDataParallel over one gloo process, with `no_sync` in the first half of each window.

The trap: hooks on gradients, and micro-batches that are not reduced.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EXPECT = ()


def build(device="cpu"):
    torch.manual_seed(1046)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    x, y = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)

    if not dist.is_initialized():
        store = dist.FileStore(tempfile.mkdtemp() + "/store", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    net = DistributedDataParallel(model)

    def step():
        optimizer.zero_grad()
        for i in range(2):
            net.require_backward_grad_sync = i == 1
            with torch.autocast(device, dtype=torch.float16):
                out = net(x + i)
            loss = nn.functional.mse_loss(out.float(), y) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step
