"""What the tests import: small models, a training loop, fresh processes, comparison."""
