"""Instruments: curvature, Hessian spectrum, loss landscapes, and the paper's statements as things to measure."""
