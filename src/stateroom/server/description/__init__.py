"""The description of a server: its OpenAPI document, and a page made of it."""
