"""The schema's history: one file per revision, run through :mod:`pipeline.db.migrate`."""
