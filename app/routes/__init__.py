"""HTTP routes, one module a family; each is built by a function that takes the application state."""
