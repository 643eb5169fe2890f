"""The training loop: one recipe, from data to selected weights, in a run folder that survives anything.

Steps are numbered as in the protocol: step 0 to `steps`, an update each, evaluated after step 0, k, 2k, ... and the
last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import averaging as averagings
from mecam import methods, virtual
from mecam.averaging import loaded
from mecam.data.augment import Augmentation
from mecam.data.domains import DataError, DomainSet, source_domains
from mecam.data.open import open_data
from mecam.data.sampling import DomainSampler
from mecam.data.splits import seed_hash, split
from mecam.methods import Method
from mecam.models.network import Network
from mecam.models.registry import create as create_network
from mecam.optim import OPTIMIZERS, SharpnessAware
from mecam.optim import create as create_optimizer
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, RecipeError
from mecam.runs import RunFolder
from mecam.training.evaluate import evaluate
from mecam.training.feed import Feed
from mecam.training.interrupt import Interrupted, StopSignals
from mecam.training.machine import Machine, find_machine
from mecam.training.metrics import Metrics, mean_over
from mecam.training.selection import Best

NO_AUGMENTATION: dict[str, Any] = {
    "area": (1.0, 1.0),
    "aspect": (1e-3, 1e3),
    **dict.fromkeys(("flip", "brightness", "contrast", "saturation", "hue", "grayscale"), 0.0),
}
BN_BATCHES = 100  # over which batch-norm statistics of averaged weights are estimated anew


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after every step, and at every evaluation."""

    step: int
    steps: int
    loss: float | None
    record: dict[str, Any] | None


Watcher = Callable[[Progress], None]


def train(
    recipe: Recipe,
    out: Path | str = "runs",
    *,
    device: str = "auto",
    watch: Watcher | None = None,
    data: DomainSet | None = None,
) -> RunFolder:
    """Run the recipe in <out>/<run id>, or go on with it; a finished run is left as it is."""
    machine = find_machine(device, recipe.precision)
    run = Run(recipe, machine, open_data(recipe.data) if data is None else data)
    folder = RunFolder(Path(out) / recipe.run_id)
    state = folder.begin(recipe.to_dict(), machine.describe(), run_id=recipe.run_id) if machine.writes else None
    if folder.is_done():
        return folder
    if machine.ranks > 1:
        state = _from_rank_0(state)
    with StopSignals() as signals:
        run.go(folder, state, signals, watch or (lambda _: None))
    return folder


class Run:
    """Everything a recipe stands for, built, and the steps through it."""

    def __init__(self, recipe: Recipe, machine: Machine, data: DomainSet) -> None:
        self.recipe, self.machine, self.data = recipe, machine, data
        self.sources = source_domains(data, recipe.target)
        self.method = methods.create(recipe.method, **recipe.method_settings)
        _check(recipe, machine, data, self.method, len(self.sources))
        self.splits = {d: split(len(data.labels(d)), trial=recipe.seed, domain=d, holdout=recipe.holdout)
                       for d in range(len(data.domains))}  # fmt: skip
        torch.manual_seed(seed_hash(recipe.seed, "weights"))
        self.network = self._network().to(machine.device)
        self.averaging = averagings.create(recipe.averaging, **recipe.averaging_settings)
        self.feed = self._feed()
        self.model: nn.Module = self.network
        if machine.ranks > 1:
            self.model = nn.parallel.DistributedDataParallel(self.network)
        self.forward: Any = torch.compile(self.model) if recipe.compile else self.model
        self.optimizer = self._optimizer()
        self.draws = torch.Generator().manual_seed(seed_hash(recipe.seed, "draws"))
        self.method_state = self.method.initial_state()
        self.best = Best(recipe.selection)
        # from here on the global stream is dropout's and the virtual domain's, another one on each rank
        torch.manual_seed(seed_hash(recipe.seed, "training", machine.rank))

    def go(self, folder: RunFolder, state: dict[str, Any] | None, signals: StopSignals, watch: Watcher) -> None:
        """Train from the checkpoint's state, or from the start, to the end."""
        recipe, first = self.recipe, 0
        if state is not None:
            self.load_state_dict(state)
            first = state["step"] + 1
        if not self.best.stopped:
            for step in range(first, recipe.steps + 1):
                loss = self._step()
                self.averaging.update(self.network)
                record = None
                if step % recipe.evaluate_every == 0 or step == recipe.steps:
                    record = self._evaluate(step)
                    if self.machine.writes:
                        folder.append(record)
                        folder.save_checkpoint(self.state_dict(step))
                watch(Progress(step, recipe.steps, loss, record))
                if self.best.stopped:
                    break
                if signals.received is not None:
                    if record is None and self.machine.writes:
                        folder.save_checkpoint(self.state_dict(step))
                    raise Interrupted(signals.received, step)
        if self.machine.writes:
            self._finish(folder)

    def state_dict(self, step: int) -> dict[str, Any]:
        """All there is to go on from, bit for bit."""
        device = self.machine.device
        return {
            "step": step,
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaging": self.averaging.state_dict(),
            "method": self.method_state,
            "feed": self.feed.state_dict(),
            "draws": self.draws.get_state(),
            "random": torch.get_rng_state(),
            "random_on_device": None if device.type == "cpu" else torch.cuda.get_rng_state(device),
            "best": self.best.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaging.load_state_dict(state["averaging"])
        self.method_state = state["method"]
        self.feed.load_state_dict(state["feed"])
        self.draws.set_state(state["draws"])
        torch.set_rng_state(state["random"])
        if state["random_on_device"] is not None and self.machine.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_on_device"], self.machine.device)
        self.best.load_state_dict(state["best"])

    def _step(self) -> float | None:
        batch = self.feed.next()
        draw = self.method.draw(batch, self.draws)
        states: list[Any] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with self.machine.autocast():
                loss, state = self.method.loss(self.forward, batch, draw, self.method_state)
            states.append(state)
            graph = self.optimizer.needs_graph if isinstance(self.optimizer, SharpnessAware) else self._graph
            loss.backward(create_graph=graph)  # type: ignore[no-untyped-call]
            return loss

        loss = cast("Any", self.optimizer).step(closure)
        self.method_state = states[0]
        return None if self.machine.device.type != "cpu" else float(loss.detach())

    def _evaluate(self, step: int) -> dict[str, Any]:
        candidate = self.averaging.candidate(self.network)
        with loaded(self.network, candidate):
            found = self._metrics()
            weights = self.network.state_dict() if candidate is None else candidate
            held_out = {n: m for n, m in found.items() if n.endswith(" out") and n != f"{self.recipe.target} out"}
            stop = self.averaging.evaluated(step, mean_over(held_out, "loss"), self.network)
            oracle = found.get(f"{self.recipe.target} out")
            self.best.offer(step, mean_over(held_out, "accuracy"), oracle.accuracy if oracle else None, weights)
        self.best.stopped = stop
        return {"step": step, "splits": {name: metrics.to_dict() for name, metrics in found.items()}}

    def _metrics(self) -> dict[str, Metrics]:
        named: dict[str, tuple[int, NDArray[np.int64]]] = {}
        for domain, parts in self.splits.items():
            named[f"{self.data.domains[domain]} in"] = (domain, parts.training)
            named[f"{self.data.domains[domain]} out"] = (domain, parts.held_out)
        return evaluate(
            self.network,
            self.data,
            named,
            image_size=self.recipe.image_size,
            device=self.machine.device,
            autocast=self.machine.autocast,
        )

    def _finish(self, folder: RunFolder) -> None:
        """Write the selected weights and what they are worth."""
        averaged = self.averaging.final()
        self.network.load_state_dict(self.best.weights if averaged is None else averaged)
        if averaged is not None and self.averaging.needs_bn_update:
            self._estimate_bn()
        found = self._metrics()
        normal = self.network.normalization
        folder.write_model(
            self.network.state_dict(),
            {
                "backbone": self.recipe.backbone,
                "classes": list(self.data.classes),
                "dropout": self.recipe.dropout,
                "image_size": self.recipe.image_size,
                "mean": list(normal.mean),
                "std": list(normal.std),
            },
        )
        target = found.get(f"{self.recipe.target} in")
        folder.finish(
            {
                "selected_step": None if averaged is not None else self.best.step,
                "target_accuracy": None if target is None else target.accuracy,
                "splits": {name: metrics.to_dict() for name, metrics in found.items()},
                "data": self.data.fingerprint,
            }
        )

    def _estimate_bn(self) -> None:
        """Batch-norm statistics for averaged weights, as the mean over some training batches; none if frozen."""
        layers = [m for m in self.network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
        momenta = [layer.momentum for layer in layers]
        if not layers:
            return
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        with torch.no_grad():
            for _ in range(BN_BATCHES):
                self.network(self.feed.next().images)
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum

    def _network(self) -> Network:
        recipe = self.recipe
        network = create_network(
            recipe.backbone,
            classes=len(self.data.classes),
            dropout=recipe.dropout,
            weights=None if recipe.weights is None else Path(recipe.weights),
            freeze_bn=recipe.freeze_bn,
        )
        return network.train()

    def _feed(self) -> Feed:
        recipe, machine = self.recipe, self.machine
        sampler = DomainSampler(
            [self.data.labels(d) for d in self.sources],
            [self.splits[d].training for d in self.sources],
            recipe.batch,
            torch.Generator().manual_seed(seed_hash(recipe.seed, "batches")),
            recipe.balanced,
        )
        normal = self.network.normalization
        look: dict[str, Any] = {"size": recipe.image_size, "mean": normal.mean, "std": normal.std}
        if not recipe.augment:
            look |= NO_AUGMENTATION
        return Feed(
            self.data,
            self.sources,
            sampler,
            Augmentation(**look),
            device=machine.device,
            seed=seed_hash(recipe.seed, "augmentation", machine.rank),
            part=(machine.rank, machine.ranks),
        )

    def _optimizer(self) -> torch.optim.Optimizer:
        recipe = self.recipe
        settings: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, **recipe.optimizer_settings}
        entry = OPTIMIZERS[recipe.optimizer]
        self._graph = recipe.optimizer == "adahessian"
        if entry.sharpness_aware is not None:
            settings |= {"model": self.model, "nonfinite": recipe.nonfinite, "base": recipe.base}
        if recipe.optimizer == "mecam" and recipe.virtual != "none":
            settings["virtual_domain"] = self._virtual_domain()
        return create_optimizer(recipe.optimizer, self.network.parameters(), **settings)

    def _virtual_domain(self) -> virtual.VirtualDomain:
        settings = self.recipe.virtual_settings
        if self.recipe.virtual == "fourier":  # the one that acts on pixels
            normal = self.network.normalization
            domain = virtual.Fourier(**{"mean": normal.mean, "std": normal.std, **settings})
            return domain.attach(self.network)
        return virtual.create(self.recipe.virtual, **settings).attach(self.network, self.network.stages)


def _check(recipe: Recipe, machine: Machine, data: DomainSet, method: Method, sources: int) -> None:
    """Refuse at the door what could only fail later."""
    find_optimizer(recipe.optimizer)
    if sources < 1 or (recipe.target is None and len(data.domains) < 1):
        raise DataError(f"{data.name} has no source domain besides the target {recipe.target!r}")
    if sources < method.sources:
        raise RecipeError(f"{method.name} needs at least {method.sources} source domains; here are {sources}")
    if recipe.batch % machine.ranks:
        raise RecipeError(f"batch={recipe.batch} images a domain cannot be shared evenly by {machine.ranks} processes")


def _from_rank_0(state: dict[str, Any] | None) -> dict[str, Any] | None:
    """The checkpoint that rank 0 read, on every rank."""
    box = [state]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
