"""Celery's side: the app and three tasks. Arguments are ids; bodies are one call (law 1: a message is a doorbell)."""
