"""Importing what shows records loads no renderer: each is imported when it is needed."""

import subprocess
import sys


def test_no_renderer_is_loaded():
    code = (
        "import sys, equipoise.report, equipoise.report.checkup.page, "
        "equipoise.report.probe.page, equipoise.report.probe.terminal; "
        "print({'matplotlib', 'jinja2', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
