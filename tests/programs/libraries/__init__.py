"""Trainings by the libraries that people use, on models made from a configuration."""
