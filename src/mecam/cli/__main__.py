"""`python -m mecam.cli`, as under torchrun."""

from mecam.cli import main

main()
