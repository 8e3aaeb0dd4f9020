"""office: run the back office of a company. An environment of realistic size."""

from stateroom.gallery.office.environment import OfficeEnvironment, OfficeTask
from stateroom.gallery.office.state import Office

__all__ = ["Office", "OfficeEnvironment", "OfficeTask"]
