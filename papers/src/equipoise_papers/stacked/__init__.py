"""Several small models trained as one stack."""

from equipoise_papers.stacked.batches import stacked_batches
from equipoise_papers.stacked.choice import multiplications_per_layer, worthwhile
from equipoise_papers.stacked.train import train_many

__all__ = ["train_many", "stacked_batches", "worthwhile", "multiplications_per_layer"]
