"""``python -m normgen``."""

from normgen.cli import main

raise SystemExit(main())
