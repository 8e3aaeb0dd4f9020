from .calculator import CalculatorEnvironment as CalculatorEnvironment
from .counter import Counter as Counter, CounterEnvironment as CounterEnvironment
from .database import (
    Database as Database,
    DatabaseEnvironment as DatabaseEnvironment,
    SQLEnvironment as SQLEnvironment,
)
from .extraction import Extraction as Extraction, ExtractionEnvironment as ExtractionEnvironment
from .facts import FactsEnvironment as FactsEnvironment
from .math import Ledger as Ledger, MathEnvironment as MathEnvironment
from .office import Office as Office, OfficeEnvironment as OfficeEnvironment
from .refund import RefundEnvironment as RefundEnvironment
from .weather import WeatherEnvironment as WeatherEnvironment
