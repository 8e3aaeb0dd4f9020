"""What is wrong with a page."""


class PageError(AssertionError):
    """Something that a page shows is not so."""
