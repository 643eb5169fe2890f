"""Measure how well predictions in an unseen domain are judged, leaving out each domain of a data set in turn.

    python benchmarks/confidence.py root --out benchmarks/results/confidence.md

For each unseen domain, `mecam.fitting.confidence.estimate` gets what mecam fit trains on the other domains: heads on a
frozen backbone that leave out each of them in turn, and one on all of them. Then the unseen domain is predicted.

- Temperature: by minimal cross-entropy on held-out images of the training domains, or on domains that were left out.
- Threshold of the probability for a wanted precision, chosen on the same two.
- Novelty: AUROC of images of the unseen domain against held-out images of the training domains, beside those of the
  distance to the nearest training images and of the probability; and the share of batches that are called unlike all
  training domains.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from machine import heading, publish, table
from mecam.data.domains import DomainSet
from mecam.data.open import open_data
from mecam.fitting.confidence import Outputs, estimate, outputs
from mecam.recipe import Recipe
from mecam.runs import RunError, RunFolder
from mecam.serving import Confidence, Together, load_model
from mecam.splits import Part, Split
from mecam.training import features, train
from mecam.training.build import build_network
from mecam.training.machine import Machine, find_machine
from mecam.training.metrics import measure

PRECISIONS = (0.8, 0.9, 0.95)
BATCHES, SIZE = 100, 50  # batches drawn of each domain, and their images at most
NEIGHBOURS = 5
Cells = dict[str, float]
Logits = tuple[Tensor, Tensor]  # logits, labels
FITTED = ("none", "held-out", "left-out")  # on what a temperature is fitted
COLUMNS = {
    "Temperature": ["accuracy", *(f"{what} {name}" for what in ("T", "error", "loss") for name in FITTED)],
    "Threshold": [
        f"{name} {wanted:.0%} {what}"
        for wanted in PRECISIONS
        for name in FITTED[1:]
        for what in ("precision", "answered")
    ],
    "Novelty": [
        "AUROC",
        "AUROC of neighbors",
        "AUROC of probability",
        "seen",
        "seen, one class",
        "unseen",
        "unseen, one class",
    ],
}


def main() -> int:
    options = parse()
    machine, data = find_machine(options.device), open_data(options.data)
    trials: list[tuple[str, Cells]] = []
    with TemporaryDirectory(prefix="mecam-") as scratch:
        for seed in options.seeds:
            for unseen in data.domains:
                recipe = Recipe(data=options.data, backbone=options.backbone, seed=seed, trainable="head")
                trials.append((unseen, trial(recipe, unseen, data, machine, Path(scratch) / f"{unseen}-{seed}")))
                print(unseen, seed, {name: round(value, 3) for name, value in trials[-1][1].items()}, flush=True)
    counts = ", ".join(f"{name} {len(data.labels(domain)):,}" for domain, name in enumerate(data.domains))
    facts = {"data": f"{data.name}: {counts} images", "backbone": f"{options.backbone}, frozen; a linear head"}
    seeds = ", ".join(map(str, options.seeds))
    trained = f"{len(trials)}: each domain as the unseen one, seeds {seeds}; the last row is the mean"
    lines = heading("Judging predictions in an unseen domain", options.device, {**facts, "trials": trained})
    for title, columns in COLUMNS.items():
        lines += ["", f"## {title}", *rows(trials, data.domains, columns)]
    publish(lines, options.out)
    return 0


def trial(recipe: Recipe, unseen: str, data: DomainSet, machine: Machine, out: Path) -> Cells:
    """Estimate the confidence without a domain, and return how it does there."""
    sources = Sources(data, unseen)
    reuse_features(recipe, data, sources, machine)

    def trained(target: str | None) -> RunFolder:
        return train(replace(recipe, target=target), out, data=sources, device=str(machine.device))

    final, left_out = trained(None), {name: trained(name) for name in sources.domains}
    confidence = estimate(final, left_out, sources, machine)
    seen = outputs(final, sources, machine)
    training, held_out = ([seen[Split(name, part)] for name in sources.domains] for part in Part)
    there = whole(outputs(final, data, machine), unseen)
    answers = logits(final, there)
    by_held_out = logits(final, *held_out)
    parts = [logits(run, whole(outputs(run, sources, machine), name)) for name, run in left_out.items()]
    by_left_out = tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
    return {
        **calibration(answers, by_held_out, by_left_out),
        **precisions(confidence, answers, by_held_out),
        **novelty(confidence, there, held_out, np.random.default_rng(recipe.seed)),
        "AUROC of neighbors": neighbours(training, there, held_out),
        "AUROC of probability": 100 * auroc(-certain(by_held_out)[0], -certain(answers)[0]),
    }


class Sources:
    """A data set without one of its domains."""

    def __init__(self, data: DomainSet, without: str) -> None:
        self.data, self.places = data, [n for n, name in enumerate(data.domains) if name != without]
        self.domains = tuple(data.domains[place] for place in self.places)
        self.name, self.classes, self.size = data.name, data.classes, data.size
        self.fingerprint = f"{data.fingerprint} without {without}"

    def labels(self, domain: int) -> NDArray[np.int64]:
        return self.data.labels(self.places[domain])

    def aspects(self, domain: int) -> NDArray[np.float32]:
        return self.data.aspects(self.places[domain])

    def images(self, domain: int, indices: Sequence[int] | NDArray[np.integer]) -> Tensor:
        return self.data.images(self.places[domain], indices)

    def sample_name(self, domain: int, index: int) -> str:
        return self.data.sample_name(self.places[domain], index)


def reuse_features(recipe: Recipe, data: DomainSet, sources: Sources, machine: Machine) -> None:
    """Keep the features of the whole data set as those of its sources, so that they are computed once."""
    network = build_network(recipe, len(data.classes)).to(machine.device)
    weights = {name: tensor.cpu() for name, tensor in network.featurizer.state_dict().items()}
    facts = {"backbone": recipe.backbone, "preprocessing": network.preprocessing}
    network.precision = machine.autocast
    everything = features.compute(network, data, machine, features.digest_of(weights, data, machine, **facts))
    key = features.digest_of(weights, sources, machine, **facts)
    for file, place in zip(features._files(sources, key), sources.places, strict=True):
        features._write(file, everything[place], key)


def whole(of: dict[Split, Outputs], domain: str) -> Outputs:
    """Return all images of a domain."""
    parts = [of[split] for part in Part if (split := Split(domain, part)) in of]
    return Outputs(*(torch.cat([getattr(one, name) for one in parts]) for name in ("features", "predicted", "labels")))


def logits(run: RunFolder, *parts: Outputs) -> tuple[Tensor, Tensor]:
    """Return the logits of a run's head, and the labels."""
    head = load_model(run.path).network.get_submodule("head")
    with torch.no_grad():
        return head(torch.cat([part.features for part in parts])), torch.cat([part.labels for part in parts])


def calibration(answers: Logits, by_held_out: Logits, by_left_out: Logits) -> Cells:
    """Return the calibration error on the unseen domain without temperature, and with those fitted on the two."""
    found: Cells = {"accuracy": 100 * measure(*answers).accuracy}
    fitted = {"held-out": temperature(*by_held_out), "left-out": temperature(*by_left_out)}
    for name, value in {"none": 1.0, **fitted}.items():
        metrics = measure(answers[0] / value, answers[1])
        found |= {f"T {name}": value, f"error {name}": 100 * metrics.calibration_error, f"loss {name}": metrics.loss}
    return found


def temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the divisor of the logits with the least cross-entropy, by bisection: it is convex in the inverse."""
    logits, low, high = logits.double(), 0.01, 100.0
    for _ in range(60):
        inverse = (low + high) / 2
        scaled = logits * inverse
        # the derivative of the cross-entropy by the inverse
        slope = (scaled.softmax(1) * logits).sum(1).mean() - logits.gather(1, labels[:, None]).mean()
        low, high = (low, inverse) if slope > 0 else (inverse, high)
    return 2 / (low + high)


def precisions(confidence: Confidence, answers: Logits, by_held_out: Logits) -> Cells:
    """Return precision and share of answers on the unseen domain, for thresholds chosen on the two."""
    probabilities, right = certain(answers)
    chosen = dict(zip(("probabilities", "right"), certain(by_held_out), strict=True))
    judges = {"held-out": replace(confidence, **chosen), "left-out": confidence}
    found: Cells = {}
    for wanted in PRECISIONS:
        for name, judge in judges.items():
            try:
                answered = probabilities >= judge.threshold(wanted)
            except RunError:  # not reached: nothing is answered
                answered = torch.zeros_like(right)
            found[f"{name} {wanted:.0%} precision"] = 100 * right[answered].double().mean().item()
            found[f"{name} {wanted:.0%} answered"] = 100 * answered.double().mean().item()
    return found


def certain(answers: Logits) -> tuple[Tensor, Tensor]:
    """Return the probability of the predicted class, and whether it is right."""
    probabilities, predicted = answers[0].softmax(1).max(1)
    return probabilities, predicted == answers[1]


def novelty(
    confidence: Confidence, there: Outputs, held_out: Sequence[Outputs], generator: np.random.Generator
) -> Cells:
    """Return the AUROC of images, and the shares of batches called unlike all training domains."""
    space = confidence.space

    def of(part: Outputs) -> Tensor:
        return confidence.novelty(space.project(part.features), part.predicted)

    def called(part: Outputs, *, one_class: bool) -> float:
        hits = []
        for _ in range(BATCHES):
            labels = part.labels.numpy()
            own = np.flatnonzero(labels == generator.choice(labels)) if one_class else np.arange(len(labels))
            chosen = torch.from_numpy(generator.permutation(own)[:SIZE])
            batch = Together(confidence)
            batch.add(space.project(part.features[chosen]), part.predicted[chosen])
            hits.append((batch.novelty or 0) > 1)
        return 100 * fmean(hits)

    found = {"AUROC": 100 * auroc(torch.cat([of(one) for one in held_out]), of(there))}
    found["seen"] = fmean(called(one, one_class=False) for one in held_out)
    found["seen, one class"] = fmean(called(one, one_class=True) for one in held_out)
    return {**found, "unseen": called(there, one_class=False), "unseen, one class": called(there, one_class=True)}


def neighbours(training: Sequence[Outputs], there: Outputs, held_out: Sequence[Outputs]) -> float:
    """Return the AUROC, in percent, of the mean cosine distance to the nearest training images."""
    known = normalize(torch.cat([one.features for one in training]))

    def score(part: Outputs) -> Tensor:
        return torch.cat(
            [1 - (normalize(own) @ known.T).topk(NEIGHBOURS).values.mean(1) for own in part.features.split(1000)]
        )

    return 100 * auroc(torch.cat([score(one) for one in held_out]), score(there))


def auroc(negative: Tensor, positive: Tensor) -> float:
    """Return the share of pairs in which the positive has the higher score; ties count half."""
    ordered = negative.sort().values
    below, upto = (torch.searchsorted(ordered, positive, right=right).double() for right in (False, True))
    return float((below + upto).mean() / 2 / len(ordered))


def rows(trials: Sequence[tuple[str, Cells]], domains: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return a table: a row per unseen domain, the mean over seeds, and a row of means."""
    body = []
    for name in (*domains, "mean"):
        own = [cells for unseen, cells in trials if name in (unseen, "mean")]
        means = (np.nanmean([cells[column] for cells in own]) for column in columns)
        body.append([name, *(f"{mean:.2f}" if column[:2] in ("T ", "lo") else f"{mean:.1f}"
                             for column, mean in zip(columns, means, strict=True))])  # fmt: skip
    return table(["unseen domain", *columns], body)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", help="a folder root/<domain>/<class>/<image>, a store or the name of a data set")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
