"""The depth beyond which networks do not train, found and compared with 16ξ."""
