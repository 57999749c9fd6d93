"""From closed batches to their leaders, with what must survive a death."""
