"""`python -m mqtrail`: the command line."""

from mqtrail.cli import main

main()
