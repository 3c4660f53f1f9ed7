"""When numbers with errors decide a claim."""
