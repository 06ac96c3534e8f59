"""The truth: tables, sessions, every query, migrations. The only room of SQLAlchemy."""
