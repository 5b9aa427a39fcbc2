"""Request traces of other programs and of this one: reading them for a replay, writing them."""
