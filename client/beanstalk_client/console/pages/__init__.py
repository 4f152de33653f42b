"""The pages of the console: each is a function from a visit to a response."""
