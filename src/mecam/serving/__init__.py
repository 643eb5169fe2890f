"""Use a trained model: predict images, and export it for other programs."""

from mecam.serving.export import ExportError, export
from mecam.serving.images import find_images
from mecam.serving.model import Prediction, TrainedModel, find_run, load_model
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
