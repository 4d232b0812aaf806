"""What a run leaves behind; one output a file."""
