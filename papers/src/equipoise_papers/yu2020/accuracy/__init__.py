"""Accuracy with RUN and with other normalisations."""
