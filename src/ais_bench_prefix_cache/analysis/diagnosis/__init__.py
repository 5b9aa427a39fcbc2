"""Why theory and counters differ: small rules over one run's evidence, in three files by what they look at."""
