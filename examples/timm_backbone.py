"""Train a timm model with MeCAM in your own loop. Run: python examples/timm_backbone.py [steps] [model].

`create` replaces the classifier and lists, in `stages`, the layers at which a virtual domain acts: the ends of three
resolutions. The program needs 'mecam[timm]'. On the command line:

    mecam train --backbone timm/resnet10t --no-pretrained --image-size 64 --optimizer mecam
"""

import sys
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mecam.data.augment import evaluate_transform
from mecam.data.open import open_data
from mecam.models import create
from mecam.optim import MeCAM
from mecam.virtual import MixStyle

UNSEEN, SIZE = "sketch", 64


def main(steps: int = 100, model: str = "resnet10t") -> float:
    torch.manual_seed(0)
    data = open_data("shapes")
    network = create(f"timm/{model}", classes=len(data.classes), pretrained=False)  # True: download timm's weights
    style = MixStyle().attach(network, network.stages)
    print(f"timm/{model}: {network.num_features} features, MixStyle after {', '.join(network.stages)}")
    optimizer = MeCAM(network.parameters(), torch.optim.Adam, lr=1e-3, virtual_domain=style, model=network)
    preprocessing = replace(network.preprocessing, size=SIZE)
    sources = [index for index, domain in enumerate(data.domains) if domain != UNSEEN]

    for _ in range(steps):
        images, labels = [], []
        for domain in sources:
            chosen = torch.randint(len(data.labels(domain)), (16,)).numpy()
            images.append(data.images(domain, chosen))
            labels.append(torch.from_numpy(data.labels(domain)[chosen]))
        x, y = evaluate_transform(torch.cat(images), preprocessing), torch.cat(labels)

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(network(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)

    network.eval()
    unseen = data.domains.index(UNSEEN)
    labels = torch.from_numpy(data.labels(unseen))
    x = evaluate_transform(data.images(unseen, range(len(labels))), preprocessing)
    with torch.no_grad():
        accuracy = (network(x).argmax(1) == labels).float().mean().item()
    print(f"accuracy on {UNSEEN}, which was not trained on: {100 * accuracy:.1f} %")
    return accuracy


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
