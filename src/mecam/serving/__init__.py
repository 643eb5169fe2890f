"""Use a trained model: predict images, evaluate it on labelled ones, and export it for other programs."""

from mecam.serving.confidence import Confidence, Together
from mecam.serving.ensemble import load_ensemble
from mecam.serving.evaluate import evaluate
from mecam.serving.evaluation import Evaluation
from mecam.serving.export import ExportError, export
from mecam.serving.labelled import find_images
from mecam.serving.model import Prediction, TrainedModel, load_model
from mecam.serving.tables import writer

__all__ = [
    "Confidence",
    "Evaluation",
    "ExportError",
    "Prediction",
    "Together",
    "TrainedModel",
    "evaluate",
    "export",
    "find_images",
    "load_ensemble",
    "load_model",
    "writer",
]
