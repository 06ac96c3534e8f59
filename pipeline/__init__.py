"""A durable batch pipeline for a fleet of Macs: the core and the command line. Knows nothing about mlx."""

__version__ = "0.1.0"
