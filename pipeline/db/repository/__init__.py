"""Every query, one file per table family. All return frozen values; none commits (the unit of work does)."""
