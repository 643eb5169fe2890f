"""MeCAM and the sharpness-aware optimizers it is compared with, as ordinary torch optimizers.

from mecam.optim import MeCAM

optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=3e-5, rho=0.1, model=model)

def closure():
    optimizer.zero_grad()
    loss = loss_function(model(inputs), targets)
    loss.backward()
    return loss

loss = optimizer.step(closure)
"""

from mecam.optim.asam import ASAM
from mecam.optim.crsam import CRSAM
from mecam.optim.dgsam import DGSAM
from mecam.optim.disam import DISAM
from mecam.optim.esam import ESAM
from mecam.optim.fad import FAD
from mecam.optim.fsam import FSAM
from mecam.optim.gam import GAM
from mecam.optim.graphs import capture
from mecam.optim.gsam import GSAM
from mecam.optim.last import LastStep
from mecam.optim.looksam import LookSAM
from mecam.optim.mecam import MeCAM
from mecam.optim.msam import MSAM
from mecam.optim.registry import OPTIMIZERS, clear_state, create, register
from mecam.optim.sagm import SAGM
from mecam.optim.sam import SAM
from mecam.optim.schedules import RhoSchedule, constant, cosine, inverse_sqrt, linear, proportional_to_lr, warmup
from mecam.optim.sharpness import SharpnessAware
from mecam.optim.stablesam import StableSAM
from mecam.optim.vasso import VaSSO
from mecam.optim.wsam import WSAM

__all__ = [
    "ASAM",
    "CRSAM",
    "DGSAM",
    "DISAM",
    "ESAM",
    "FAD",
    "FSAM",
    "GAM",
    "GSAM",
    "MSAM",
    "OPTIMIZERS",
    "SAGM",
    "SAM",
    "WSAM",
    "LastStep",
    "LookSAM",
    "MeCAM",
    "RhoSchedule",
    "SharpnessAware",
    "StableSAM",
    "VaSSO",
    "capture",
    "clear_state",
    "constant",
    "cosine",
    "create",
    "inverse_sqrt",
    "linear",
    "proportional_to_lr",
    "register",
    "warmup",
]
