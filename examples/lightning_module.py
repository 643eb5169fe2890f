"""Train with MeCAM under Lightning. Run: python examples/lightning_module.py [steps].

Lightning passes its closure to the optimizer. Only the line that logs depends on the number of passes. The program
trains on three styles of the embedded set and tests on the fourth. It needs 'mecam[lightning]'.
"""

import sys

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import mecam
from mecam.data.open import open_data
from mecam.models import create
from mecam.optim import MeCAM
from mecam.virtual import MixStyle

mecam.repair_torchvision()  # Lightning imports torchvision, which may be built for another torch
import lightning.pytorch as pl  # noqa: E402

UNSEEN = "sketch"


class Classifier(pl.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.network = create("resnet8", classes=classes)
        self.style = MixStyle().attach(self.network, self.network.stages)

    def configure_optimizers(self) -> MeCAM:
        return MeCAM(self.parameters(), torch.optim.Adam, lr=3e-3, rho=0.1, virtual_domain=self.style, model=self)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        if self.optimizers().first_pass:  # the other passes are at other weights
            self.log("loss", loss)
        return loss

    def test_step(self, batch: list[Tensor]) -> None:
        images, labels = batch
        accuracy = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy on the unseen domain", accuracy, prog_bar=True)


def main(steps: int = 200) -> float:
    torch.manual_seed(0)
    data = open_data("shapes")
    parts = {}
    for index, domain in enumerate(data.domains):
        labels = torch.from_numpy(data.labels(index))
        parts[domain] = TensorDataset(data.images(index, range(len(labels))) / 255, labels)
    unseen = DataLoader(parts.pop(UNSEEN), batch_size=100)
    sources = DataLoader(ConcatDataset(list(parts.values())), batch_size=96, shuffle=True, drop_last=True)

    trainer = pl.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    module = Classifier(len(data.classes))
    trainer.fit(module, sources)
    (metrics,) = trainer.test(module, unseen)
    return metrics["accuracy on the unseen domain"]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
