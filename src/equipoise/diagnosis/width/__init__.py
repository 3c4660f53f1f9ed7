"""How sizes of activations and updates change with a model's width."""
