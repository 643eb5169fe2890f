"""Train with MeCAM under Accelerate. Run: python examples/accelerate_loop.py [steps].

`accelerate launch examples/accelerate_loop.py` also works. `prepare` takes the optimizer unchanged; the closure calls
`accelerator.backward`. The program trains on three styles of the embedded set and tests on the fourth. It needs the
package accelerate.
"""

import sys

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

from mecam.data.open import open_data
from mecam.models import create
from mecam.optim import MeCAM
from mecam.virtual import MixStyle

UNSEEN = "sketch"


def main(steps: int = 200) -> float:
    accelerator = Accelerator()
    torch.manual_seed(0)
    data = open_data("shapes")
    parts = {}
    for index, domain in enumerate(data.domains):
        labels = torch.from_numpy(data.labels(index))
        parts[domain] = TensorDataset(data.images(index, range(len(labels))) / 255, labels)
    unseen = DataLoader(parts.pop(UNSEEN), batch_size=100)
    sources = DataLoader(ConcatDataset(list(parts.values())), batch_size=96, shuffle=True, drop_last=True)

    network = create("resnet8", classes=len(data.classes))
    style = MixStyle().attach(network, network.stages)
    optimizer = MeCAM(network.parameters(), torch.optim.Adam, lr=3e-3, rho=0.1, virtual_domain=style, model=network)
    network, optimizer, sources, unseen = accelerator.prepare(network, optimizer, sources, unseen)

    step = 0
    while step < steps:
        for images, labels in sources:

            def closure(images: Tensor = images, labels: Tensor = labels) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(network(images), labels)
                accelerator.backward(loss)
                return loss

            optimizer.step(closure)
            step += 1
            if step == steps:
                break

    network.eval()
    with torch.no_grad():
        pairs = [accelerator.gather_for_metrics((network(images).argmax(1), labels)) for images, labels in unseen]
    correct = torch.cat([predicted == labels for predicted, labels in pairs])
    accuracy = correct.float().mean().item()
    accelerator.print(f"accuracy on {UNSEEN}, which was not trained on: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
