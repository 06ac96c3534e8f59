"""What users bring and take away, and the messages to a child: pure functions over bytes and values."""
