"""ERM++ (Teterwak et al., 2023): ERM with a better schedule and averaged weights."""

from __future__ import annotations

from mecam.methods.lpft import LPFT


class ERMPlusPlus(LPFT):
    """LP-FT with averaged weights.

    The recipe's default averaging is `ema` with a long memory, close to the authors' mean of all weights. Give more
    steps and other weights (`--steps`, `--weights`) for the longer training and the stronger initialization of the
    authors. Their learning rate falls by the validation loss of an earlier run; `--lr-schedule` is the choice here.
    """

    name = "ermplusplus"
    accumulates = True
    capturable = True
    by_domain = True
