"""python -m vdnn_alloc COMMAND."""

from __future__ import annotations

import argparse
import sys

from vdnn_alloc.commands import doctor
from vdnn_alloc.errors import VdnnError

COMMANDS = {"doctor": doctor.run}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vdnn_alloc")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.__doc__)
    chosen = str(parser.parse_args(arguments).command)
    try:
        return COMMANDS[chosen]()
    except VdnnError as error:
        print(f"vdnn_alloc: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
