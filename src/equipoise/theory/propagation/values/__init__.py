"""What is known of a tensor: its values, or its moments over random weights."""
