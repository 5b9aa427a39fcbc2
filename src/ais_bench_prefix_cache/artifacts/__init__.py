"""The files of a data set: paths, rows, manifest, writing and verifying."""
