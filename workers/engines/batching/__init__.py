"""The scheduler above mlx-lm's models: rows in, finished rows out."""
