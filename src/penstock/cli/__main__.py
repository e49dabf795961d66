"""`python -m penstock.cli`: what the launcher starts. Says plainly when the environment has lost a package."""

from __future__ import annotations

try:
    from penstock.cli.main import main
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] == "penstock":
        raise
    raise SystemExit(
        f"penstock: the package '{missing.name}' is not installed in this environment.\n"
        "In a checkout, delete the folder .venv and run ./penstock again: it is remade. "
        "Elsewhere, install penstock again with pip."
    ) from None

if __name__ == "__main__":
    main()
