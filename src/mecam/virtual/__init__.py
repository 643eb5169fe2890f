"""Virtual domains: the batch at hand, seen as if it came from a domain nobody has recorded."""

from mecam.virtual._domain import VirtualDomain
from mecam.virtual.dsu import DSU
from mecam.virtual.efdmix import EFDMix
from mecam.virtual.fourier import Fourier
from mecam.virtual.mixstyle import MixStyle
from mecam.virtual.registry import DOMAINS, create

__all__ = ["DOMAINS", "DSU", "EFDMix", "Fourier", "MixStyle", "VirtualDomain", "create"]
