"""`python -m turnaround` is the command `turnaround`."""

from turnaround.cli import main

main()
