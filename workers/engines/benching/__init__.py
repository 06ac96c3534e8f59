"""Several ways of answering the same requests, measured side by side on one loaded model."""
