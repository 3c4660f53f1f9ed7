"""Compact maps entry by entry, as they are defined. NumPy, one sample at a time."""

import numpy as np


def count_sketch(x, places, signs, size):
    """Ψ(x)_j, the sum of s(i) x_i over h(i) = j."""
    sketch = np.zeros(size)
    for i, value in enumerate(x):
        sketch[places[i]] += signs[i] * value
    return sketch


def tensor_sketch(x, places, signs, size):
    """φ(x), the circular convolution of two count sketches, by its definition."""
    first, second = (count_sketch(x, places[k], signs[k], size) for k in (0, 1))
    sketch = np.zeros(size)
    for a in range(size):
        for b in range(size):
            sketch[(a + b) % size] += first[a] * second[b]
    return sketch


def tensor_sketch_matrix(C, places, signs, size):
    """Φ(C)_j, the sum of s_1(i) s_2(l) C_il over h_1(i) + h_2(l) = j modulo d."""
    sketch = np.zeros(size)
    for i in range(len(C)):
        for k in range(len(C)):
            j = (places[0, i] + places[1, k]) % size
            sketch[j] += signs[0, i] * signs[1, k] * C[i, k]
    return sketch


def random_maclaurin(x, W):
    """φ(x)_j = (W_1 x)_j (W_2 x)_j / √d."""
    first, second = W
    return np.array([(a @ x) * (b @ x) for a, b in zip(first, second, strict=True)]) / np.sqrt(
        len(first)
    )


def random_maclaurin_matrix(C, W):
    """Φ(C)_j = (W_1 C W_2ᵀ)_jj / √d."""
    first, second = W
    sketch = np.zeros(len(first))
    for j in range(len(first)):
        for i in range(len(C)):
            for k in range(len(C)):
                sketch[j] += first[j, i] * C[i, k] * second[j, k]
    return sketch / np.sqrt(len(first))


def dominant_direction(F, start, steps):
    """v̂ after steps of the power iteration on FᵀF."""
    v = np.array(start, dtype=float)
    for _ in range(steps):
        v = F.T @ (F @ v)
        v /= np.linalg.norm(v)
    return v


def rank_one_update(F, v, eta):
    """F_K = F (I - η v̂v̂ᵀ), the factor form of RUN."""
    return F @ (np.eye(len(v)) - eta * np.outer(v, v))
