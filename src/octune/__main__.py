"""``python -m octune`` is the ``octune`` command."""

from octune.cli import main

main()
