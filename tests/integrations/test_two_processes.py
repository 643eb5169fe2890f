"""Two processes under Lightning, Fabric and the Trainer of Transformers train as one does on both batches."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import mecam
from mecam.integrations.transformers import SharpnessAwareMixin
from mecam.optim import SAM, MeCAM
from tests.integrations.loops import BATCHES, SIZE, assert_close, dataset, network, sgd, train
from tests.optim import distributed
from tests.optim.distributed import Ranks, run

METHODS: dict[str, Any] = {"sam": SAM, "mecam": MeCAM}
one_thread = pytest.fixture(autouse=True)(distributed.one_thread)


def model_without_statistics() -> nn.Sequential:
    """Batch norm would see half of the batch on each rank."""
    model = network()
    model[1] = nn.Identity()
    return model


def halves() -> torch.utils.data.Dataset[Any]:
    """This rank's half of every batch, in the order of the batches."""
    inputs, targets = dataset().tensors
    rank = dist.get_rank()
    return torch.utils.data.TensorDataset(inputs[rank::2], targets[rank::2])


def under_fabric(method: str) -> dict[str, Tensor]:
    from lightning.fabric import Fabric

    model = model_without_statistics()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", num_nodes=1)
    fabric.launch()
    wrapped, optimizer = fabric.setup(model, sgd(METHODS[method], model))
    for x, y in list(torch.utils.data.DataLoader(halves(), batch_size=SIZE // 2)) * 2:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(x), y)
            fabric.backward(loss)
            return loss

        optimizer.step(closure)
    return model.state_dict()


def under_lightning(method: str) -> dict[str, Tensor]:
    import lightning.pytorch as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_without_statistics()

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return sgd(METHODS[method], self.model)

    module = Classifier()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        precision="64-true",
    )
    trainer.fit(module, torch.utils.data.DataLoader(halves(), batch_size=SIZE // 2))
    return module.model.state_dict()


class Loss(nn.Module):
    """A model that returns its loss, as Transformers expects."""

    def __init__(self) -> None:
        super().__init__()
        self.network = model_without_statistics()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.network(x), labels)}


def under_transformers(method: str, window: int) -> dict[str, Tensor]:
    from transformers import Trainer, TrainingArguments

    class SharpnessAwareTrainer(SharpnessAwareMixin, Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                [{"x": x, "labels": y} for x, y in halves()],  # type: ignore[arg-type]
                batch_size=SIZE // 2,
            )

    model = Loss()
    settings = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", "gradient_accumulation_steps": window}
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=2,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            ddp_backend="gloo",
            **settings,  # type: ignore[arg-type]
        )
        trainer = SharpnessAwareTrainer(
            model, arguments, train_dataset=[0] * SIZE * BATCHES, optimizers=(sgd(METHODS[method], model), None)
        )
        trainer.train()
        assert isinstance(trainer.model_wrapped, nn.parallel.DistributedDataParallel)
    return model.network.state_dict()


def in_this_group(case: Callable[[], Any]) -> Any:
    """Show the frameworks the process group that is there, as torchrun would."""
    mecam.repair_torchvision()
    rank = dist.get_rank()
    os.environ.update(
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    )
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "test"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case()


CASES = {
    **{f"fabric {name}": partial(in_this_group, partial(under_fabric, name)) for name in METHODS},
    **{f"lightning {name}": partial(in_this_group, partial(under_lightning, name)) for name in METHODS},
    **{
        f"transformers {name} {window}": partial(in_this_group, partial(under_transformers, name, window))
        for name in METHODS
        for window in (1, 3)
    },
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run(CASES, tmp_path_factory.mktemp("ranks"))


def expect(states: list[dict[str, Tensor]], method: str, window: int = 1) -> None:
    inputs, targets = dataset().tensors
    model = model_without_statistics()
    batches = list(zip(inputs.split(SIZE), targets.split(SIZE), strict=True))
    train(model, sgd(METHODS[method], model), batches, window=window)
    for state in states:
        trained = model_without_statistics()
        trained.load_state_dict(state)
        assert_close(trained, model)


@pytest.mark.works_with("Lightning", "DDP, two processes on gloo", packages=["lightning"])
@pytest.mark.parametrize("method", METHODS)
def test_lightning(ranks: Ranks, method: str) -> None:
    expect(ranks[f"lightning {method}"], method)


@pytest.mark.works_with("Fabric", "DDP, two processes on gloo", packages=["lightning"])
@pytest.mark.parametrize("method", METHODS)
def test_fabric(ranks: Ranks, method: str) -> None:
    expect(ranks[f"fabric {method}"], method)


@pytest.mark.works_with(
    "Transformers", "DDP, two processes on gloo, accumulation 1 and 3", packages=["transformers", "accelerate"]
)
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_transformers(ranks: Ranks, method: str, window: int) -> None:
    expect(ranks[f"transformers {method} {window}"], method, window)
