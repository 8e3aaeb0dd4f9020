"""An airline's help desk: an agent changes and cancels bookings for a customer, by the airline's rules."""

from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from stateroom import Environment, Episode, State, Task, ToolError, Verdict, compare, tool
from stateroom.agent import SimulatedUser, UserSide

BookingId = Annotated[str, Field(description="The id of a booking, such as A1.")]
FlightNumber = Annotated[str, Field(description="The number of a flight, such as SR100.")]
Customer = Annotated[str, Field(description="The customer's name, in small letters.")]
Route = Annotated[str, Field(description="Two airports, such as OSL-LIS.")]
Date = Annotated[str, Field(description="A day, such as 2025-05-20.")]


class Flight(BaseModel):
    route: str
    date: str
    price: int
    seats: int = 9
    cancelled: bool = False


class Booking(BaseModel):
    customer: str
    flight: str
    cabin: Literal["basic", "economy", "business"] = "economy"
    insured: bool = False
    paid: int
    status: Literal["booked", "cancelled"] = "booked"


class Airline(State):
    flights: dict[str, Flight] = {
        "SR100": Flight(route="OSL-LIS", date="2025-05-20", price=180),
        "SR101": Flight(route="OSL-LIS", date="2025-05-21", price=140),
        "SR200": Flight(route="LIS-OSL", date="2025-05-28", price=210),
        "SR300": Flight(route="OSL-ROM", date="2025-05-22", price=160, cancelled=True),
    }
    bookings: dict[str, Booking] = {
        "A1": Booking(customer="ada", flight="SR100", paid=180),
        "A2": Booking(customer="ada", flight="SR200", cabin="basic", paid=210),
        "B1": Booking(customer="bo", flight="SR300", paid=160),
        "B2": Booking(customer="bo", flight="SR200", insured=True, paid=225),
    }
    answers: int = 0
    customer: UserSide = UserSide()


class Wish(Task):
    wish: str
    """What the customer wants, in their words."""
    gold: list[dict] = []
    """The calls that settle it by the rules; only reads if the rules forbid it."""


class AirlineEnvironment(Environment[Airline, Wish]):
    """Settle what a customer of an airline wants, by the rules."""

    examples = "tasks.jsonl"

    def __init__(self, user: str | None = None) -> None:
        self.user = None if user is None else SimulatedUser(user, "You are a customer. Answer in one short sentence.")

    @tool(effect="read")
    def list_bookings(self, state: Airline, customer: Customer) -> list[str]:
        """The ids of a customer's bookings."""
        return [key for key, booking in state.bookings.items() if booking.customer == customer]

    @tool(effect="read")
    def look_up(self, state: Airline, booking_id: BookingId) -> dict:
        """A booking, and its flight."""
        booking = self.find(state, booking_id)
        return {**booking.model_dump(), "flight": {"number": booking.flight, **vars(state.flights[booking.flight])}}

    @tool(effect="read")
    def search(self, state: Airline, route: Route, date: Date) -> dict[str, Flight]:
        """Flights of a route on a day, by number."""
        return {key: flight for key, flight in state.flights.items() if (flight.route, flight.date) == (route, date)}

    @tool
    def change(self, state: Airline, booking_id: BookingId, flight: FlightNumber) -> int:
        """Move a booking to another flight. Gives the difference in price, which the customer pays or gets back."""
        booking = self.find(state, booking_id)
        new = state.flights[flight]
        if not new.seats:
            raise ToolError(f"{flight} has no free seat")
        difference = new.price - booking.paid
        state.flights[booking.flight].seats += 1
        new.seats -= 1
        booking.flight, booking.paid = flight, new.price
        return difference

    @tool
    def cancel(self, state: Airline, booking_id: BookingId) -> int:
        """Cancel a booking. Gives what the customer gets back."""
        booking = self.find(state, booking_id)
        if booking.status == "cancelled":
            raise ToolError(f"{booking_id} is cancelled already")
        booking.status = "cancelled"
        state.flights[booking.flight].seats += 1
        return booking.paid

    def find(self, state: Airline, booking_id: str) -> Booking:
        if booking_id not in state.bookings:
            raise ToolError(f"there is no booking {booking_id}")
        return state.bookings[booking_id]

    async def reply(self, state: Airline, message: str, task: Wish, rng: Random) -> str | None:
        if self.user is not None:
            return await self.user.reply(state.customer, message, about=task.wish, seed=rng.getrandbits(32))
        state.answers += 1  # by rules: say it when asked, and agree to everything
        return None if "?" not in message or state.answers > 4 else task.wish if state.answers == 1 else "Yes, please."

    async def verify(self, state: Airline, episode: Episode) -> Verdict:
        gold = await episode.after(episode.task.gold)
        found = compare(episode.states()[0], state, gold, ignore=["answers", "customer"])
        looked_up: list[str] = []
        careful = True
        for call in episode.calls():
            if call.name == "look_up":
                looked_up.append(call.input["booking_id"])
            elif call.name in ("change", "cancel"):
                careful = careful and call.input["booking_id"] in looked_up
        careful = careful and all(gold["arguments"]["booking_id"] in looked_up for gold in episode.task.gold)
        goal = float(found.same)
        return Verdict(goal * careful, {"goal": goal, "careful": float(careful)}, reason=found.text())
