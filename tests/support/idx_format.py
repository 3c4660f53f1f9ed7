"""A transcription of the IDX format's definition, byte by byte, to test the reader against."""

import struct

CODES = {
    "uint8": (0x08, "B"),
    "int8": (0x09, "b"),
    "int16": (0x0B, "h"),
    "int32": (0x0C, "i"),
    "float32": (0x0D, "f"),
    "float64": (0x0E, "d"),
}


def encode_idx(values, shape, kind="uint8"):
    code, letter = CODES[kind]
    header = bytes([0, 0, code, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)
    return header + b"".join(struct.pack(f">{letter}", value) for value in values)


def image_files(count=6, side=2):
    """Bytes of a tiny image file and label file, in MNIST's form."""
    pixels = [(7 * i) % 256 for i in range(count * side * side)]
    labels = [i % 10 for i in range(count)]
    return encode_idx(pixels, (count, side, side)), encode_idx(labels, (count,))
