"""The vDNN paper beside this project: its networks, its policies, its figures."""
