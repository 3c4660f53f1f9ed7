"""Register how check-ups and probes are printed, saved and rendered."""

from equipoise.diagnosis.record import Checkup, Probe
from equipoise.records.shown import View, register_view
from equipoise.report.checkup.cell import cell, picture
from equipoise.report.checkup.page import render_checkup
from equipoise.report.checkup.store import save
from equipoise.report.checkup.terminal.overview import print_checkup
from equipoise.report.probe.page import render_probe, save_probe
from equipoise.report.probe.terminal import print_probe

register_view(Checkup, View(print_checkup, save, render_checkup, cell, picture))
register_view(Probe, View(print_probe, save_probe, render_probe))
