"""extraction: look up several values, then hand in all of them, in order. The smallest multi-step environment."""

from stateroom.gallery.extraction.environment import Extraction, ExtractionEnvironment, ExtractionTask

__all__ = ["Extraction", "ExtractionEnvironment", "ExtractionTask"]
