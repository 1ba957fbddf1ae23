"""Throughput and memory of every stage, each against the way it is compared with in one run."""
