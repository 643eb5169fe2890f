"""One run: everything a recipe stands for, built, and the steps through it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map_only

from mecam import averaging as averagings
from mecam import methods, ranks
from mecam.averaging import loaded
from mecam.data.domains import DomainSet, source_domains
from mecam.data.splits import seed_hash, split
from mecam.methods import Batch, Setting
from mecam.models.folding import fold_frozen
from mecam.optim import SharpnessAware, clear_state
from mecam.recipe import Recipe, lr_ratio
from mecam.training import build, nonfinite
from mecam.training.evaluate import Look, evaluate
from mecam.training.feed import State
from mecam.training.machine import Machine
from mecam.training.metrics import Metrics, mean_over
from mecam.training.rates import Rates
from mecam.training.recorded import Recorded
from mecam.training.selection import Best

if TYPE_CHECKING:
    from mecam.analysis.tracking import Tracker

BN_BATCHES = 100  # over which batch-norm statistics of averaged weights are estimated anew


@dataclass(frozen=True)
class Finished:
    """What comes out of a run."""

    weights: dict[str, Tensor]
    facts: dict[str, Any]  # what one must know to use the weights
    result: dict[str, Any]  # what they are worth
    predictions: dict[str, Tensor]  # what they say of each image of the target


class Run:
    """The parts of a run between its data and its weights."""

    def __init__(self, recipe: Recipe, machine: Machine, data: DomainSet) -> None:
        self.recipe, self.machine, self.data = recipe, machine, data
        sources = source_domains(data, recipe.target)
        self.method = methods.create(recipe.method, **recipe.method_settings)
        self.splits = {
            domain: split(len(data.labels(domain)), trial=recipe.seed, domain=domain, holdout=recipe.holdout)
            for domain in range(len(data.domains))
        }
        build.check(recipe, self.method, len(sources), sum(len(self.splits[d].held_out) for d in sources))
        torch.manual_seed(seed_hash(recipe.seed, "weights"))
        self.network = build.build_network(recipe, len(data.classes)).to(machine.device)
        self.network.precision = machine.autocast
        setting = Setting(
            len(data.classes), len(sources), recipe.steps, recipe.lr, recipe.weight_decay, lr_ratio(recipe)
        )
        self.trained = self.method.build(self.network, setting)
        self.trained.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build.build_optimizer(recipe, self.method, self.network, self.trained, machine.device)
        self.parameters = list(self.trained.parameters())  # finding them takes longer than a small network's update
        if recipe.compile:
            self.network.featurizer.compile()
        self.records = build.what_to_record(recipe, self.method, self.optimizer, machine.device)
        self.rates = Rates(recipe, self.optimizer, machine.device if self.records == "steps" else None)
        if self.records != "nothing" and not recipe.compile:
            fold_frozen(self.network)  # by kernels that pay only where Python does not launch them
        self.averaging = averagings.create(recipe.averaging, **recipe.averaging_settings)
        self.feed = build.build_feed(recipe, data, sources, self.splits, self.network, machine.device)
        self.draws = torch.Generator().manual_seed(seed_hash(recipe.seed, "draws", ranks.rank()))
        self.method_state = self.method.initial_state()
        self.best = Best(recipe.selection)
        self.looks = nonfinite.who_looks(self.optimizer, machine.device)
        # steps of a plain optimizer that were left out; a sharpness-aware one counts its own
        self.skipped = torch.zeros((), dtype=torch.int64, device=machine.device)
        self.noted: list[tuple[int, State, Tensor]] = []  # since the last evaluation, what was left out by then
        self.tracker: Tracker | None = None
        self.recorded: dict[Hashable, Recorded] = {}  # by kind of step
        self.look = Look(self.network.image_size, self.network.normalization, self.network.interpolation)
        records = self.records != "nothing" and not self.method.mates
        self.forward = Recorded(partial(self.look.logits, self.trained)) if records else None
        # from here on the global stream is dropout's and the virtual domain's, another one in each process
        torch.manual_seed(seed_hash(recipe.seed, "training", ranks.rank()))

    def step(self, step: int) -> Tensor | None:
        """One step of everything; the loss at theta, None where the main optimizer rests."""
        method, recipe, before = self.method, self.recipe, self.feed.state
        buffers = nonfinite.finite_buffers(self.trained) if recipe.nonfinite == "skip" else {}
        batch = self.feed.next(step)
        draw = method.draw(batch, self.draws)
        self._set_rates(step)
        if method.restarts(step):
            clear_state(self.optimizer)
            self.recorded.clear()
        try:
            if method.declines(step):
                loss, first = None, self.method_state
            elif self.records == "steps":
                loss, first = self._recorded_update(batch, draw)
            else:
                loss, first = self._update(batch, draw, self.method_state)
        except FloatingPointError as error:
            if recipe.nonfinite == "raise":
                raise nonfinite.BadStep(step, self._names(before.sampler), batch, str(error)) from error
            loss, first = None, self.method_state
            self.skipped += 1
        except ValueError as error:
            raise build.too_few(recipe, self.network.image_size, error) from error
        if buffers:
            nonfinite.put_back(self.trained, buffers)
        if self.machine.device.type == "cuda" and recipe.nonfinite == "raise":
            self.noted.append((step, before, self._skipped().clone()))
        self.method_state = method.after(self.trained, batch, draw, first)
        if ranks.count() > 1:
            ranks.average(_tensors(self.method_state))
        self.averaging.update(self.trained)
        return loss

    def track(self, file: Path, after: int) -> None:
        """Keep records of curvature in this file from now on, those of steps up to `after` in it already."""
        from mecam.analysis.tracking import Tracker

        self.tracker = Tracker(
            cast("SharpnessAware", self.optimizer),
            every=self.recipe.track,
            path=file if self.machine.writes else None,
            measure=self.recipe.track_measures or None,
            extrapolate=not self.method.surgery,
        )
        self.tracker.resume(after)

    def evaluate(self, step: int) -> dict[str, Any]:
        """The record of this step; selection and averaging take note of it."""
        self._require_finite()
        ranks.average(buffer for buffer in self.trained.buffers())
        candidate = self.averaging.candidate(self.trained)
        with loaded(self.trained, candidate):
            found = self.metrics(self.watched())
            weights = self.trained.state_dict() if candidate is None else candidate
            held_out = {n: m for n, m in found.items() if n.endswith(" out") and n != f"{self.recipe.target} out"}
            oracle = found.get(f"{self.recipe.target} out")
            self.best.offer(step, mean_over(held_out, "accuracy"), oracle.accuracy if oracle else None, weights)
        self.best.stopped = self.averaging.evaluated(step, mean_over(held_out, "loss"), self.trained)
        return {"step": step, "splits": {name: metrics.to_dict() for name, metrics in found.items()}}

    def watched(self) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """The splits that are evaluated on the way; what is only reported, not needed, waits for the end.

        Of the sources the held-out parts, of the target the part that tables report; the oracle looks at the other.
        """
        reported, oracles = f"{self.recipe.target} in", f"{self.recipe.target} out"
        splits = self._splits()
        if self.recipe.selection != "oracle":
            splits.pop(oracles, None)
        return {name: part for name, part in splits.items() if name.endswith(" out") or name == reported}

    def metrics(
        self, splits: dict[str, tuple[int, NDArray[np.int64]]], keep: dict[str, Tensor] | None = None
    ) -> dict[str, Metrics]:
        """How the network does on these splits; `keep` is given the logits."""
        device = self.machine.device
        return evaluate(self.trained, self.data, splits, self.look, device=device, forward=self.forward, keep=keep)

    def finish(self) -> Finished:
        """Select the weights, and say what they are worth."""
        averaged = self.averaging.final()
        self.trained.load_state_dict(self.best.weights if averaged is None else averaged)
        if averaged is not None and self.averaging.needs_bn_update:
            self._estimate_bn()
        logits: dict[str, Tensor] = {}
        found = self.metrics(self._splits(), logits)
        target = found.get(f"{self.recipe.target} in")
        result = {
            "selected_step": None if averaged is not None else self.best.step,
            "target_accuracy": None if target is None else target.accuracy,
            "splits": {name: metrics.to_dict() for name, metrics in found.items()},
            "data": self.data.fingerprint,
        }
        if self.recipe.nonfinite == "skip":
            result["skipped_steps"] = int(self._skipped())
        return Finished(self.trained.state_dict(), self._facts(), result, self._predictions(logits))

    def state_dict(self, step: int) -> dict[str, Any]:
        """All there is to go on from, bit for bit. Every process calls it; the first one's is complete."""
        device = self.machine.device
        own = {
            "augmentation": self.feed.state.noise,
            "draws": self.draws.get_state(),
            "random": torch.get_rng_state(),
            "random_on_device": None if device.type == "cpu" else torch.cuda.get_rng_state(device),
        }
        return {
            "step": step,
            "network": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "averaging": self.averaging.state_dict(),
            "method": self.method.state_dict(),
            "method_state": self.method_state,
            "sampler": self.feed.state.sampler,
            "best": self.best.state_dict(),
            "skipped": int(self.skipped),
            "ranks": ranks.gather(own),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.recorded.clear()  # graphs read the tensors that the optimizer had before
        self.averaging.load_state_dict(state["averaging"])
        self.method.load_state_dict(state["method"])
        self.method_state = _on(state["method_state"], self.machine.device)
        self.best.load_state_dict(state["best"])
        self.skipped.fill_(state["skipped"])
        if len(state["ranks"]) != ranks.count():
            self.feed.load(state["sampler"], None)
            return  # another number of processes: the streams start anew
        own = state["ranks"][ranks.rank()]
        fits = len(own["augmentation"]) == len(self.feed.state.noise)  # a CPU's is no GPU's
        self.feed.load(state["sampler"], own["augmentation"] if fits else None)
        self.draws.set_state(own["draws"])
        torch.set_rng_state(own["random"])
        if own["random_on_device"] is not None and self.machine.device.type == "cuda":
            torch.cuda.set_rng_state(own["random_on_device"], self.machine.device)

    def _update(self, batch: Batch, draw: Any, state: Any) -> tuple[Tensor | None, Any]:
        """The passes and the optimizer's step: the loss at theta, and the method's next state."""
        states: list[Any] = []

        def closure() -> Tensor:
            one_pass = self._recorded_pass if self.records == "passes" else self._pass
            value, next_state = one_pass(batch, draw, state)
            states.append(next_state)
            if ranks.count() > 1 or self.looks == "host":
                gradients = [parameter.grad for parameter in self.parameters]
                ranks.average([value, *gradients])
                if self.looks == "host":
                    nonfinite.require_finite(value, gradients)
            return value

        self._clear()  # before the step: no optimizer then has to find out whether the closure does
        if self.tracker is not None:
            loss = cast("Tensor | None", self.tracker.step(closure, batch.step))
        elif self.looks == "device":
            loss = nonfinite.step_if_finite(self.optimizer, closure, self.trained, self.skipped)
        else:
            loss = cast("Any", self.optimizer).step(closure)
        return loss, states[0]

    def _pass(self, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """The gradient at the weights of the moment, in the parameters; the loss and the method's next state."""
        self._clear()
        graph = build.needs_graph(self.optimizer, self.recipe)
        return self.method.gradient(self.trained, batch, draw, state, graph=graph)

    def _clear(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None  # as zero_grad does, at a tenth of its cost

    def _recorded_update(self, batch: Batch, draw: Any) -> tuple[Tensor | None, Any]:
        """`_update` as one CUDA graph for each kind of step, recorded anew after each restart."""
        kind = self.optimizer.plan() if isinstance(self.optimizer, SharpnessAware) else None
        found: tuple[Tensor | None, Any] = self._replay(self._update, batch, draw, self.method_state, kind)
        return found

    def _recorded_pass(self, batch: Batch, draw: Any, state: Any) -> tuple[Tensor, Any]:
        """`_pass` as a CUDA graph, for optimizers that decide on the host which passes to take."""

        def one_pass(*inputs: Any) -> tuple[Tensor, Any, list[Tensor | None]]:
            return *self._pass(*inputs), [parameter.grad for parameter in self.parameters]

        value, state, gradients = self._replay(one_pass, batch, draw, state)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            # the next replay fills the same memory, and optimizers keep gradients over passes
            parameter.grad = None if gradient is None else gradient.clone()
        return value.clone(), state

    def _replay(self, function: Callable[..., Any], batch: Batch, draw: Any, state: Any, kind: Hashable = None) -> Any:
        if kind not in self.recorded:
            domains, step = batch.domains, batch.step
            self.recorded[kind] = Recorded(lambda x, y, *rest: function(Batch(x, y, domains, step), *rest))
        return self.recorded[kind](*_on((batch.images, batch.labels, draw, state), self.machine.device))

    def _skipped(self) -> Tensor:
        """How many steps were left out, where the device counts them."""
        return self.skipped + torch.as_tensor(getattr(self.optimizer, "skipped", 0), device=self.skipped.device)

    def _require_finite(self) -> None:
        """On a GPU steps that are not finite are left out there and then; whether there were any is asked here."""
        noted, self.noted = self.noted, []
        if noted:
            counts = torch.stack([count for _, _, count in noted]).tolist()
            bad = next((entry for entry, count in zip(noted, counts, strict=True) if count), None)
            if bad is not None:
                step, before, _ = bad
                names = self._names(before.sampler)
                self.feed.load(before.sampler, before.noise)
                reason = "the gradient was not finite; that step was not taken, and later ones may have been"
                raise nonfinite.BadStep(step, names, self.feed.next(step), reason)

    def _names(self, sampler: dict[str, Any]) -> list[str]:
        """The images of the batch, this process's share of it, that the sampler gave in this state."""
        now = self.feed.sampler.state_dict()
        self.feed.sampler.load_state_dict(sampler)
        drawn = self.feed.sampler.next()
        self.feed.sampler.load_state_dict(now)
        return [
            self.data.sample_name(domain, int(index))
            for domain, indices in zip(self.feed.sources, drawn, strict=True)
            for index in indices.chunk(ranks.count())[ranks.rank()]
        ]

    def _set_rates(self, step: int) -> None:
        rates = self.method.rates(step)
        self.rates.set(step, rates)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            for parameter in group["params"]:
                if parameter.requires_grad != (rate > 0):
                    parameter.requires_grad_(rate > 0)

    def _predictions(self, logits: dict[str, Tensor]) -> dict[str, Tensor]:
        """Of the target, or else of the held-out parts: for each image its domain, index, label, class, confidence."""
        parts: list[tuple[Tensor, ...]] = []
        for domain, name in enumerate(self.data.domains):
            reported = self.splits[domain].training if name == self.recipe.target else self.splits[domain].held_out
            split = f"{name} in" if name == self.recipe.target else f"{name} out"
            if (self.recipe.target is None or name == self.recipe.target) and split in logits:
                index = torch.from_numpy(reported)
                label = torch.from_numpy(self.data.labels(domain)[reported])
                confidence, predicted = logits[split].softmax(1).max(1)
                parts.append((torch.full_like(index, domain), index, label, predicted, confidence))
        names = ("domain", "index", "label", "predicted", "confidence") if parts else ()
        return {name: torch.cat(columns) for name, columns in zip(names, zip(*parts, strict=True), strict=True)}

    def _splits(self) -> dict[str, tuple[int, NDArray[np.int64]]]:
        """Every split by its name."""
        named: dict[str, tuple[int, NDArray[np.int64]]] = {}
        for domain, parts in self.splits.items():
            named[f"{self.data.domains[domain]} in"] = (domain, parts.training)
            named[f"{self.data.domains[domain]} out"] = (domain, parts.held_out)
        return named

    def _facts(self) -> dict[str, Any]:
        normal = self.network.normalization
        facts = {
            "backbone": self.recipe.backbone,
            "method": self.recipe.method,
            "method_settings": self.recipe.method_settings,
            "domains": len(self.data.domains) - (self.recipe.target is not None),
            "classes": list(self.data.classes),
            "image_size": self.network.image_size,
            "interpolation": self.network.interpolation,
            "mean": list(normal.mean),
            "std": list(normal.std),
        }
        if self.network.offline is not None:
            facts["architecture"], facts["architecture_settings"] = self.network.offline
        return facts

    def _estimate_bn(self) -> None:
        """Batch-norm statistics for averaged weights, as the mean over some training batches; none if frozen."""
        layers = [module for module in self.trained.modules() if isinstance(module, _BatchNorm) and module.training]
        momenta = [layer.momentum for layer in layers]
        if not layers:
            return
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        with torch.no_grad():
            for number in range(BN_BATCHES):
                self.trained(self.feed.next(number).images)
        ranks.average(buffer for buffer in self.trained.buffers())
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _tensors(tree: Any) -> list[Tensor]:
    """The tensors of a running state."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _on(tree: Any, device: torch.device) -> Any:
    """A running state on this device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)
