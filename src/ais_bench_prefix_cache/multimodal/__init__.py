"""Image data sets: one image out of the MMMU Parquet files, corpus text of an exact length, and their artifacts."""
