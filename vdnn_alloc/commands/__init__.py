"""The command line; one verb a file, each with HELP and run()."""
