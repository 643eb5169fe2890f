"""Virtual domains: present a batch as if it came from an unseen domain."""

from mecam.registry import Registry
from mecam.virtual._domain import VirtualDomain
from mecam.virtual.dsu import DSU
from mecam.virtual.efdmix import EFDMix
from mecam.virtual.fourier import Fourier
from mecam.virtual.mixstyle import MixStyle

ALL: tuple[type[VirtualDomain], ...] = (MixStyle, EFDMix, DSU, Fourier)
DOMAINS = Registry("virtual domain", ALL, note="register your own first, in Python: mecam.virtual.register")
create, register = DOMAINS.create, DOMAINS.register

__all__ = ["DOMAINS", "DSU", "EFDMix", "Fourier", "MixStyle", "VirtualDomain", "create", "register"]
