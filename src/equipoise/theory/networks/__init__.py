"""Networks beyond plain stacks with batch norm."""
