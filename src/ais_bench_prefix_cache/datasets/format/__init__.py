"""What all data sets share on disk: names, writing, documents, digests, findings."""
