"""Planning: which request has which length, group, rank and shared prefix, and what theory says it hits.

Everything here is pure: no files, no network, no clock, no global random state.
"""
