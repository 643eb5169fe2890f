"""Two workers of Ray Train, a model prepared by it, train as one process does on both batches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from mecam.optim import SAM, MeCAM, SharpnessAware
from tests.integrations.loops import SIZE, assert_close, dataset, network, sgd, train

pytest.importorskip("ray", reason="Ray is not installed; make ecosystem runs this")
pytest.importorskip("pyarrow", reason="ray[train] is not installed; make ecosystem runs this")
METHODS: dict[str, type[SharpnessAware]] = {"sam": SAM, "mecam": MeCAM}
ROOT = Path(__file__).parents[2]


def worker(config: dict[str, str]) -> None:
    import ray.train
    from ray.train.torch import prepare_model

    rank = ray.train.get_context().get_world_rank()
    inputs, targets = dataset().tensors
    for name, method in METHODS.items():
        model: Any = prepare_model(network_without_statistics(), move_to_device=torch.device("cpu"))
        batches = [(x[rank::2], y[rank::2]) for x, y in zip(inputs.split(SIZE), targets.split(SIZE), strict=True)]
        train(model, sgd(method, model), batches)
        if rank == 0:
            torch.save(model.module.state_dict(), Path(config["folder"]) / f"{name}.pt")
    ray.train.report({"done": 1})


def network_without_statistics() -> torch.nn.Sequential:
    """Batch norm sees half of the batch on each rank; without it two ranks are one process exactly."""
    model = network()
    model[1] = torch.nn.Identity()
    return model


@pytest.mark.works_with("Ray Train", "TorchTrainer, two workers with DDP on gloo", packages=["ray"])
def test_two_workers_train_as_one_process(tmp_path: Path) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ray.init(
        address="local",  # another cluster may run on this machine
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    try:
        TorchTrainer(
            worker,
            train_loop_config={"folder": str(tmp_path)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "ray")),
        ).fit()
    finally:
        ray.shutdown()
    inputs, targets = dataset().tensors
    for name, method in METHODS.items():
        model = network_without_statistics()
        train(model, sgd(method, model), list(zip(inputs.split(SIZE), targets.split(SIZE), strict=True)))
        of_workers = network_without_statistics()
        of_workers.load_state_dict(torch.load(tmp_path / f"{name}.pt"))
        assert_close(of_workers, model)
