"""How good a ranking is, against judgements. Knows nothing about how it came about."""
