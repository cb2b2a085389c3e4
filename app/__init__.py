"""The product's face: settings, models by name, chains, history, HTTP routes and the command line."""

__version__ = "0.1.0"
