"""What coordinators of groups and of transactions have in common: state kept in a compacted topic of our own log."""
