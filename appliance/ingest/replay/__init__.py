"""What was taken before: identities, streams, the records of journal and spool."""
