"""Files: where they lie, how they become durable, what is in them. The only room that makes paths."""
