"""The parts of a run, built from its recipe."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mecam import averaging, methods, ranks
from mecam.data.domains import DomainSet, source_domains
from mecam.data.splits import seed_hash, split_domains
from mecam.data.store import for_sources
from mecam.methods import Setting
from mecam.models import fold_frozen
from mecam.optim.graphs import Captured
from mecam.profiles import lr_ratio
from mecam.progress import Progress, silent
from mecam.recipe import Recipe, names_in
from mecam.splits import Part, Split
from mecam.training import build, finetuning
from mecam.training.capture import Captures
from mecam.training.compiling import compile_backbone
from mecam.training.evaluate import forward_stored
from mecam.training.exchange import overlap
from mecam.training.features import freeze
from mecam.training.machine import Machine
from mecam.training.nonfinite import Unread
from mecam.training.rates import Rates
from mecam.training.selection import Best

if TYPE_CHECKING:
    from mecam.analysis.tracking import Tracker


class Run:
    """The parts of a run. `train_step`, `validate`, `finish` and `state_dict` work on them."""

    def __init__(self, recipe: Recipe, machine: Machine, data: DomainSet, progress: Progress = silent) -> None:
        sources, device = source_domains(data, recipe.target, names_in(recipe.sources)), machine.device
        data = for_sources(data, sources)
        self.recipe, self.machine, self.data = recipe, machine, data
        self.inputs = data  # what the network gets: the images, or their features
        self.method = methods.create(recipe.method, **recipe.method_settings)
        used = {recipe.target, *(data.domains[domain] for domain in sources)}
        splits = split_domains(data, trial=recipe.seed, holdout=recipe.holdout)
        self.splits = {split: indices for split, indices in splits.items() if split.domain in used}
        held_out = (Split(data.domains[domain], Part.HELD_OUT) for domain in sources)
        build.check(recipe, self.method, len(sources), sum(len(self.splits[split]) for split in held_out))
        torch.manual_seed(seed_hash(recipe.seed, "weights"))
        self.network = build.build_network(recipe, len(data.classes)).to(device)
        self.fingerprints = build.fingerprints(data, self.network)
        self.network.precision = machine.autocast
        self.frozen: dict[str, Tensor] = {}  # weights of a backbone that is not trained
        if recipe.trainable == "head":
            self.frozen, self.inputs = freeze(self.network, data, machine, backbone=recipe.backbone, progress=progress)
        finetuning.prepare(self.network, recipe)
        sizes = len(data.classes), len(sources), recipe.steps
        self.trained = self.method.build(
            self.network, Setting(*sizes, recipe.lr, recipe.weight_decay, lr_ratio(vars(recipe)))
        )
        for side in self.method.sides.values():
            # on a GPU, reading whether a step was finite would wait for it
            side.nonfinite = "ignore" if recipe.nonfinite == "raise" and device.type == "cuda" else recipe.nonfinite
        self.trained.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parameters = list(self.trained.parameters())  # collecting them takes longer than a small network's update
        self.groups = finetuning.groups(recipe, self.method, self.trained)
        self.optimizer = build.build_optimizer(recipe, self.method, self.network, self.trained, device)
        self.captures = Captures(build.what_to_capture(recipe, self.method, self.optimizer, device))
        compiled = compile_backbone(recipe, self.network.featurizer, captured=self.captures.what != "nothing")
        self.overlap = overlap(recipe, self.method, self.optimizer, self.parameters, device)
        self.rates = Rates(recipe, self.optimizer, device if self.captures.what == "steps" else None)
        on_cpu = device.type == "cpu" and self.network.freeze_bn
        if (on_cpu or self.captures.what != "nothing") and not compiled:
            fold_frozen(self.network)  # on a GPU by kernels that pay only where Python does not launch them
        if self.captures.what != "nothing" and not self.method.mates and ranks.count() == 1:  # processes share batches
            self.captures.forward = Captured(partial(forward_stored, self.trained, self.network.preprocessing))
        self.averaging = averaging.create(recipe.averaging, **recipe.averaging_settings)
        self.averaging.begin(self.trained, recipe.steps + 1)  # from step 0 to step `steps`
        self.feed = build.build_feed(recipe, self.inputs, sources, self.splits, self.network, device)
        self.draws = torch.Generator().manual_seed(seed_hash(recipe.seed, "draws", ranks.rank()))
        self.method_state = self.method.initial_state()
        self.best = Best(recipe.selection, recipe.patience)
        self.unread: list[Unread] = []  # counts of skipped steps since the last evaluation
        self.tracker: Tracker | None = None
        # from here on the global stream is for dropout and the virtual domain, another one in each process
        torch.manual_seed(seed_hash(recipe.seed, "training", ranks.rank()))
