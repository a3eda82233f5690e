"""The command ``fedlearn``, which says what it lacks; also ``python -m fedlearn``."""

import sys


def main() -> int | None:
    try:
        from .cli import main as command
    except ModuleNotFoundError as error:
        print(f"fedlearn: {error}", file=sys.stderr)
        return 2
    return command()


if __name__ == "__main__":
    sys.exit(main())
