"""The command line; one verb a file. run() is the verb, and its docstring the help text."""
