"""Virtual domains: present a batch as if it came from an unseen domain."""

from mecam.virtual._domain import VirtualDomain
from mecam.virtual.dsu import DSU
from mecam.virtual.efdmix import EFDMix
from mecam.virtual.fourier import Fourier
from mecam.virtual.mixstyle import MixStyle
from mecam.virtual.registry import DOMAINS, create, register

__all__ = ["DOMAINS", "DSU", "EFDMix", "Fourier", "MixStyle", "VirtualDomain", "create", "register"]
