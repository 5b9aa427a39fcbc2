"""Turns analyses and results into tables and pages."""
