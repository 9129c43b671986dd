"""Metrics of texts: how they are split into units, how varied they are."""
