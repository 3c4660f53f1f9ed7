"""Run the command line as ``python -m equipoise``."""

from equipoise.cli import main

raise SystemExit(main())
