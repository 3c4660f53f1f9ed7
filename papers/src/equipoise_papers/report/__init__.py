"""One report about every figure and table of the papers: terminal, Markdown, JSON and HTML."""
