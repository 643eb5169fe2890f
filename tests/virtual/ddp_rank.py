"""One of the processes of the DDP test: `python ddp_rank.py RANK WORLD RENDEZVOUS`."""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mecam.virtual import MixStyle


def main(rank: int, world: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 2)).double()
    parallel = DistributedDataParallel(copy.deepcopy(plain))
    style = MixStyle(alpha=1.0).attach(parallel, ["1"])
    style.attach(plain, ["1"])

    torch.manual_seed(100 + rank)
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    for model in (plain, parallel):
        torch.manual_seed(200 + rank)
        with style.active():
            model(x).square().sum().backward()
    for own, shared in zip(plain.parameters(), parallel.parameters(), strict=True):
        assert own.grad is not None
        assert shared.grad is not None
        dist.all_reduce(own.grad)
        torch.testing.assert_close(shared.grad, own.grad / world)

    torch.manual_seed(200 + rank)
    with style.active():
        mixed = parallel(x)
    assert not torch.allclose(mixed, parallel(x)), "MixStyle left the batch alone"
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)  # on a loaded machine, threads of gloo can abort the interpreter's own exit
