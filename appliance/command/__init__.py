"""The `millrace` command: one file per command, all of them finding their box the same way (`finding`) and printing the same way (`output`)."""
