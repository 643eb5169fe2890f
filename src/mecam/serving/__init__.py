"""Use a trained model: predict images, and export it for other programs."""

from mecam.runs import find_run
from mecam.serving.export import ExportError, export
from mecam.serving.images import find_images
from mecam.serving.model import Prediction, TrainedModel, load_model
from mecam.serving.tables import check_form, writer

__all__ = [
    "ExportError",
    "Prediction",
    "TrainedModel",
    "check_form",
    "export",
    "find_images",
    "find_run",
    "load_model",
    "writer",
]
