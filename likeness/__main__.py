"""`python -m likeness ...` is `likeness ...`; `torchrun -m likeness train ...` starts many
processes.
"""

from likeness.cli import main

if __name__ == "__main__":
    main()
