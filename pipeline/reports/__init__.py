"""Reports: a document of measurements becomes one HTML page that needs nothing else. Measures nothing itself."""
