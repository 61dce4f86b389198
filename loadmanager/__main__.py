"""``python -m loadmanager``: the same as the ``loadmanager`` command."""

from loadmanager.cli import main

if __name__ == "__main__":
    main()
