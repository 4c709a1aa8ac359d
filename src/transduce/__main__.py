"""Run the `transduce` command as `python -m transduce`."""

from transduce.commands.main import main

if __name__ == "__main__":
    raise SystemExit(main())
