"""`python -m transduce` is the command `transduce`."""

from transduce.commands.main import main

if __name__ == "__main__":
    raise SystemExit(main())
