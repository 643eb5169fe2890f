"""Using a trained model: predictions for images, and exports for other programs."""

from mecam.serving.export import ExportError, export
from mecam.serving.model import TrainedModel, find_run, load_model

__all__ = ["ExportError", "TrainedModel", "export", "find_run", "load_model"]
