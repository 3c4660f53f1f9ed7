"""Cost of RUN and of other normalisations."""
