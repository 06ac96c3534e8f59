"""What runs models inside a child. Knows nothing about databases, brokers or where answers go."""
