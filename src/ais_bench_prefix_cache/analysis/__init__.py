"""From metric texts to findings. Pure: snapshot per engine, difference, comparison with theory, diagnosis."""
