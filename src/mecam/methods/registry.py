"""Every method by name."""

from __future__ import annotations

from mecam.methods.adrmx import ADRMX
from mecam.methods.andmask import ANDMask
from mecam.methods.arm import ARM
from mecam.methods.base import Method
from mecam.methods.cad import CAD
from mecam.methods.causirlcoral import CausIRLCORAL
from mecam.methods.causirlmmd import CausIRLMMD
from mecam.methods.cdann import CDANN
from mecam.methods.condcad import CondCAD
from mecam.methods.coral import CORAL
from mecam.methods.dann import DANN
from mecam.methods.eqrm import EQRM
from mecam.methods.erm import ERM
from mecam.methods.ermplusplus import ERMPlusPlus
from mecam.methods.fish import Fish
from mecam.methods.fishr import Fishr
from mecam.methods.groupdro import GroupDRO
from mecam.methods.iberm import IBERM
from mecam.methods.ibirm import IBIRM
from mecam.methods.iga import IGA
from mecam.methods.irm import IRM
from mecam.methods.lpft import LPFT
from mecam.methods.madg import MADG
from mecam.methods.mdsdi import MDSDI
from mecam.methods.miro import MIRO
from mecam.methods.mixstyle import MixStyle
from mecam.methods.mixup import Mixup
from mecam.methods.mldg import MLDG
from mecam.methods.mmd import MMD
from mecam.methods.mtl import MTL
from mecam.methods.rdm import RDM
from mecam.methods.rsc import RSC
from mecam.methods.sagnet import SagNet
from mecam.methods.sandmask import SANDMask
from mecam.methods.sd import SD
from mecam.methods.selfreg import SelfReg
from mecam.methods.transfer import Transfer
from mecam.methods.trm import TRM
from mecam.methods.urm import URM
from mecam.methods.vrex import VREx
from mecam.registry import Registry

ALL: tuple[type[Method], ...] = (
    ERM, MMD, CORAL, MixStyle, GroupDRO, IRM, ARM, VREx, ANDMask, SANDMask, DANN, CDANN, MTL, Mixup, MLDG, Fish, SagNet,
    SelfReg, MDSDI, Fishr, MIRO, LPFT, MADG, RSC, SD, IGA, TRM, IBERM, IBIRM, CAD, CondCAD, Transfer, CausIRLCORAL,
    CausIRLMMD, EQRM, RDM, URM, ADRMX, ERMPlusPlus,
)  # fmt: skip
METHODS = Registry(
    "method",
    ALL,
    note="register your own first, in Python: mecam.methods.register",
    examples={"heldout": "held_out_domain.py"},
)
create, find, register = METHODS.create, METHODS.find, METHODS.register
