"""office: run a company's back office. An environment of real size."""

from stateroom.gallery.office.environment import OfficeEnvironment, OfficeTask
from stateroom.gallery.office.state import Office

__all__ = ["Office", "OfficeEnvironment", "OfficeTask"]
