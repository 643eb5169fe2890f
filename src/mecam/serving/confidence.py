"""Judge predictions in a new domain: a threshold of the confidence for a precision, and novelty."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import normalize

from mecam.runs import RunError, RunFolder

FEWEST = 20  # images behind a threshold of the probability
BATCH = 10  # images in a batch whose novelty is reported
USUAL = 0.95  # share of the held-out images with a novelty of at most 1


@dataclass(frozen=True)
class Space:
    """The space of features, with the means of the training images by domain and class.

    Features are scaled to length 1 and projected on `directions`. There the residuals of the training images from the
    mean of their domain and class have variance 1 in each direction, and no correlation.
    """

    directions: Tensor  # (features, rank)
    means: Tensor  # (domains, classes, rank)

    def project(self, features: Tensor) -> Tensor:
        """Return (images, rank) for features (images, features)."""
        return normalize(features.to(self.directions.dtype)) @ self.directions

    def distances(self, projected: Tensor, predicted: Tensor) -> Tensor:
        """Return the distance of each image from the mean of its predicted class in the nearest domain."""
        return torch.stack([(projected - means[predicted]).square().sum(1) for means in self.means]).amin(0).sqrt()

    def shift(self, total: Tensor, counts: Tensor) -> tuple[float, int]:
        """Return the distance of a batch from the nearest domain, and that domain.

        It is the length of the mean residual from the means of the predicted classes, so that shares of classes do not
        matter. What chance adds to its square is subtracted: rank / images.

        Args:
            total: the sum of the projected images (rank).
            counts: images of each predicted class (classes).
        """
        images = int(counts.sum())
        means = torch.einsum("c,dcr->dr", counts.to(total.dtype), self.means.to(total.dtype))
        squares = ((total - means) / images).square().sum(1) - len(total) / images
        nearest = int(squares.argmin())
        return float(squares[nearest].clamp(min=0).sqrt()), nearest


@dataclass(frozen=True)
class Confidence:
    """Statistics that `mecam fit` takes from the domains it leaves out, and from held-out images of the others."""

    space: Space
    domains: tuple[str, ...]
    usual: float  # the distance that 95 % of the held-out images of the training domains do not exceed
    shifted: float | None  # the distance from which a batch is unlike all domains; None: left-out domains do not differ
    probabilities: Tensor  # of the predicted classes, for the images of the left-out domains
    right: Tensor  # bool, for the same images

    def novelty(self, projected: Tensor, predicted: Tensor) -> Tensor:
        """Return the distance of each image relative to that of held-out images: 95 % of these have at most 1."""
        return self.space.distances(projected, predicted) / self.usual

    def threshold(self, precision: float) -> float:
        """Return the least probability from which this share of the predictions in left-out domains is right."""
        if not 0 < precision < 1:
            raise ValueError(f"a precision of {precision} is not allowed; it must be between 0 and 1, such as 0.95")
        order = self.probabilities.argsort(descending=True, stable=True)
        precisions = self.right[order].double().cumsum(0) / torch.arange(1, len(order) + 1)
        # equal probabilities have one threshold; the last of them counts
        last = self.probabilities[order].diff(append=torch.tensor([-1.0])) != 0
        enough = last & (torch.arange(len(order)) >= FEWEST - 1)
        reached = (enough & (precisions >= precision)).nonzero()
        if not len(reached):
            best = float(precisions[enough].max()) if enough.any() else 0.0
            raise RunError(
                f"a precision of {precision} is not reached on the domains left out of training; the highest is "
                f"{best:.3f}. Ask for less"
            )
        return float(self.probabilities[order[reached[-1]]])

    def answered(self, threshold: float) -> float:
        """Return the share of the predictions in left-out domains that reach a threshold."""
        return float((self.probabilities >= threshold).double().mean())

    def write(self, folder: RunFolder) -> None:
        """Write to the folder of the model's run."""
        tensors = {
            "directions": self.space.directions.float(),
            "means": self.space.means.float(),
            "probabilities": self.probabilities,
            "right": self.right,
        }
        folder.write_confidence(tensors, {"domains": self.domains, "usual": self.usual, "shifted": self.shifted})

    @classmethod
    def read(cls, folder: RunFolder) -> Confidence | None:
        """Return what is stored beside a model; None if nothing is."""
        stored = folder.read_confidence()
        if stored is None:
            return None
        tensors, facts = stored
        space = Space(tensors["directions"], tensors["means"])
        shifted, domains = facts["shifted"], tuple(facts["domains"])
        return cls(space, domains, facts["usual"], shifted, tensors["probabilities"], tensors["right"])


@dataclass
class Together:
    """The novelty of a batch: whether its images as a whole look like one of the training domains.

    Pass it to `TrainedModel.predictions`, and read it when these are through.
    """

    confidence: Confidence
    total: Tensor = field(init=False)
    counts: Tensor = field(init=False)

    def __post_init__(self) -> None:
        _, classes, rank = self.confidence.space.means.shape
        self.total = torch.zeros(rank, dtype=torch.float64)
        self.counts = torch.zeros(classes, dtype=torch.int64)

    def add(self, projected: Tensor, predicted: Tensor) -> None:
        """Add images by their projected features and predicted classes."""
        self.total += projected.sum(0)
        self.counts += torch.bincount(predicted, minlength=len(self.counts))

    @property
    def images(self) -> int:
        return int(self.counts.sum())

    @property
    def novelty(self) -> float | None:
        """The shift of the batch: above 1, it is unlike all training domains. None: few images, or not calibrated."""
        if self.images < BATCH or self.confidence.shifted is None:
            return None
        return self.confidence.space.shift(self.total, self.counts)[0] / self.confidence.shifted

    @property
    def nearest(self) -> str:
        """The nearest training domain."""
        return self.confidence.domains[self.confidence.space.shift(self.total, self.counts)[1]]

    def verdict(self) -> str | None:
        """Return the novelty of the batch in words."""
        if (novelty := self.novelty) is None:
            return None
        if novelty > 1:
            what = f"unlike all {len(self.confidence.domains)} domains of training; the nearest is {self.nearest}"
        else:
            what = f"like {self.nearest}, a domain of training"
        return f"these {self.images:,} images look {what} (novelty of the batch: {novelty:.2f})"
