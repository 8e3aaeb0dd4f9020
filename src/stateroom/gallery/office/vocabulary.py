"""The vocabulary of the generated office."""

from __future__ import annotations

from stateroom.gallery.office.state import Category, Level


def _listed(words: str) -> tuple[str, ...]:
    return tuple(words.split(", "))


FIRST_NAMES = _listed(
    "Ada, Aiko, Amara, Anouk, Arvid, Basil, Bela, Bianca, Boris, Carmen, Chidi, Clara, Dario, Delia, Edgar, Elif, "
    "Emil, Esther, Farid, Fiona, Gita, Goran, Greta, Hana, Hugo, Ines, Ivo, Jana, Jonas, Kamal, Karin, Laszlo, Leila, "
    "Lena, Marek, Mina, Nadia, Nils, Noor, Olga, Oscar, Paula, Pavel, Petra, Quentin, Rafael, Ravi, Rosa, Samir, "
    "Selma, Soren, Talia, Theo, Uma, Viktor, Vera, Wanda, Xenia, Yusuf, Zora"
)

LAST_NAMES = _listed(
    "Abbas, Almeida, Andrade, Bakker, Baros, Bello, Brandt, Castillo, Chaudhry, Costa, Dalgaard, Dimitrov, Dubois, "
    "Eklund, Esposito, Farkas, Fischer, Fontaine, Garza, Gruber, Haddad, Hansen, Horvat, Ibarra, Iyer, Jansen, "
    "Jokinen, Kaplan, Kimura, Kowal, Laurent, Lindholm, Maier, Mbeki, Moreau, Nakata, Navarro, Novak, Okafor, Ortega, "
    "Palmer, Petrov, Quiroga, Rahman, Ricci, Rossi, Sato, Schuster, Silva, Tanaka, Tesar, Ueda, Vargas, Vidal, Weber, "
    "Wolff, Yilmaz, Zapata, Zeller"
)

COMPANIES = _listed(
    "Alder Shipping, Birchgate Foods, Cobalt Mining, Copperfield Rail, Dunmore Textiles, Eastbank Energy, "
    "Fairwater Utilities, Glasson Optics, Hollin Pharma, Ironbridge Steel, Juniper Airports, Kestrel Paper, "
    "Lindow Dairies, Marlow Ceramics, Netherby Farms, Oakham Timber, Penfold Glass, Quarry Bank Cement, "
    "Redmire Breweries, Saltern Chemicals, Thornley Hospitals, Upland Water, Vantry Motors, Wexcombe Housing"
)

STAFF_TITLES = _listed(
    "mechanical engineer, electrical engineer, project manager, technician, designer, buyer, accountant, planner, "
    "quality inspector, software developer"
)

CLIENT_TITLES = _listed("head of purchasing, plant manager, engineer, site manager, assistant, director")

PROJECT_FIRST = _listed("Amber, Bright, Cedar, Dawn, Ember, Frost, Granite, Harbour, Indigo, Juniper")

PROJECT_SECOND = _listed("Bridge, Crane, Delta, Falcon, Garden, Lantern, Meadow, Orchard, Pilot, River, Summit, Tower")


WORK = _listed("Replace, Inspect, Measure, Redraw, Order, Test, Document, Repair, Calibrate, Price, Pack, Weld")

THINGS = _listed(
    "the feed pump, the control panel, the conveyor belt, the pressure valve, the safety fence, the gear box, "
    "the cooling fan, the sensor array, the hydraulic arm, the cable tray, the loading ramp, the dust filter, "
    "the display unit, the spare motor, the mounting frame, the oil tank"
)

PLACES = tuple(f"in hall {number}" for number in range(1, 13)) + tuple(f"on line {number}" for number in range(1, 9))

MEETINGS = _listed(
    "design review, budget review, weekly round, risk workshop, site visit, supplier call, test planning, handover, "
    "retrospective, safety briefing, client call, staffing talk"
)

ROOMS = _listed("Alcove, Gallery, Library, Attic, Workshop, Veranda")

TOPICS = _listed(
    "delivery dates, open questions, the new drawings, access to the site, the test report, spare parts, "
    "the price list, next week, the visit, a change of plan, the invoice, insurance papers"
)

SENTENCES = (
    "I have gone through the papers and found nothing that worries me.",
    "Could we talk about this before the end of the week?",
    "The supplier has promised to come back to us with a date.",
    "We would like to keep to the plan that we made in January.",
    "There are two points left that nobody has looked at so far.",
    "The people on the site are waiting for the new drawings.",
    "I will send the figures as soon as I have them.",
    "Please have a look when you find the time; it is not urgent.",
    "Nothing has changed since we last spoke.",
    "The weather has cost us two days, which we can make good.",
    "Our accountant asks for the papers of last quarter.",
    "It would help to know who takes care of it on your side.",
)

_DOCUMENTS: dict[Level, str] = {
    "confidential": "contract, offer, price-list, salary-plan",
    "internal": "minutes, risk-list, schedule, test-report, wiring-plan, parts-list, lessons",
    "public": "brochure, data-sheet, press-note",
}
DOCUMENTS = {name: level for level, names in _DOCUMENTS.items() for name in _listed(names)}

_VENDORS: dict[Category, str] = {
    "meals": "Blue Kettle Cafe, Corner Bistro, Harvest Table, Noodle Yard",
    "travel": "Northline Rail, Skybridge Air, Metro Cabs, Coastal Ferries",
    "hotel": "Hotel Meridian, The Weir Inn, Park Lodge",
    "software": "Draftsmith, Cloudpress, Mailbeam",
    "equipment": "Torque Tools, Brightlight Lamps, Solid Desks",
    "training": "Weld Academy, Safety First School, Language House",
}
VENDORS = {name: category for category, names in _VENDORS.items() for name in _listed(names)}

LABELS = _listed("finance, legal, urgent, follow-up, suppliers, to-read")
