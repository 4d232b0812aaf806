"""The paper's tables and figures beside ours, by one command.

python -m bench.paper --quick    # shapes and bytes, no GPU, seconds
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from bench.paper import byte_table
from bench.paper.networks import WORKLOADS

WIDTH = 120  # of a table whose reader sends it to a file


def main(arguments: list[str] | None = None) -> int:
    """Counts and prints."""
    parser = argparse.ArgumentParser(prog="bench.paper", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="shapes and bytes only; needs no GPU")
    parser.parse_args(arguments)
    rows = {name: byte_table.of_network(name) for name in WORKLOADS}
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    for table in byte_table.tables(rows):
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
