"""The worker's process and the side that runs models."""
