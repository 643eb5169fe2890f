"""Sharpness-aware optimizers in trainers that call `optimizer.step()` without a closure."""
