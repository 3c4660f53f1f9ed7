"""Run the command line as ``python -m equipoise``."""

from equipoise.cli.main import main

raise SystemExit(main())
