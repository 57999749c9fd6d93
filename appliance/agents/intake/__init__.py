"""From records to open batches, with the books."""
