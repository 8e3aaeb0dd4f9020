"""The expense tools: expenses of employees, and payments.

The tools pay whatever they are told to, as a bank does; `rules` says what may be paid.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

from pydantic import Field

from stateroom import ToolError, tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import Category, Contact, Expense, Office, Payment, Settlement

Amount = Annotated[float, Field(gt=0)]


class ExpenseTools:
    """Tools that file, settle and pay expenses."""

    @tool(effect="read")
    def list_expenses(
        self, state: Office, query: str = "", employee_id: str = "", status: Settlement | None = None, page: int = 1
    ) -> dict[str, Any]:
        """Expenses, by their number.

        Args:
            query: Words that must all be in the vendor, the purpose or the number of the receipt.
            employee_id: Whose they are, such as C-0001.
            status: What became of them.
            page: Which page of the results.
        """
        wanted, employee = records.words(query), state.id_of(Contact, employee_id)
        expenses = [
            expense
            for expense in state.expenses.values()
            if (not employee or expense.employee == employee)
            and (status is None or expense.status == status)
            and records.has_words(wanted, expense.vendor, expense.purpose, expense.receipt)
        ]
        return records.page_of(expenses, page, _brief)

    @tool(effect="read")
    def get_expense(self, state: Office, expense_id: str) -> Expense:
        """All that is known of an expense.

        Args:
            expense_id: The expense, such as EX-0001.
        """
        return state.find(Expense, expense_id)

    @tool
    def file_expense(
        self,
        state: Office,
        employee_id: str,
        vendor: str,
        category: Category,
        amount: Amount,
        receipt: str,
        spent_on: date,
    ) -> dict[str, str]:
        """Enter an expense, as its receipt says.

        Args:
            employee_id: Who has spent the money, such as C-0001.
            vendor: Where.
            category: On what kind of thing.
            amount: How much.
            receipt: The number of the receipt.
            spent_on: When.
        """
        employee = state.find(Contact, employee_id)
        expense = Expense(
            id=records.new_id("EX", state.expenses, records.RESERVED),
            employee=employee.id,
            vendor=vendor.strip(),
            category=category,
            amount=round(amount, 2),
            receipt=receipt.strip(),
            spent_on=spent_on,
        )
        return {"expense_id": records.add(state.expenses, expense)}

    @tool
    def categorise_expense(self, state: Office, expense_id: str, category: Category) -> dict[str, str]:
        """Say on what kind of thing money was spent.

        Args:
            expense_id: The expense, such as EX-0001.
            category: The kind of thing.
        """
        return {"category": state.replace(_unsettled(state, expense_id), category=category).category}

    @tool
    def approve_expense(self, state: Office, expense_id: str) -> dict[str, str]:
        """Say for the office that an expense is in order, so that it can be paid. That is not the manager's approval.

        Args:
            expense_id: The expense, such as EX-0001.
        """
        return {"status": state.replace(_unsettled(state, expense_id), status="approved").status}

    @tool
    def reject_expense(self, state: Office, expense_id: str, reason: str) -> dict[str, str]:
        """Say that an expense is not paid back.

        Args:
            expense_id: The expense, such as EX-0001.
            reason: Why.
        """
        rejected = state.replace(_unsettled(state, expense_id), status="rejected", note=reason)
        return {"status": rejected.status}

    @tool(effect="external")
    def pay(self, state: Office, expense_id: str, amount: Amount) -> dict[str, Any]:
        """Pay an employee back for an approved expense. The money is gone then.

        Args:
            expense_id: The expense, such as EX-0001.
            amount: How much to pay.
        """
        expense = state.find(Expense, expense_id)
        if expense.status not in ("approved", "paid"):
            raise ToolError(f"expense {expense_id} is {expense.status}: only what is approved can be paid")
        payment = Payment(id=records.new_id("PAY", state.payments), expense=expense.id, amount=round(amount, 2))
        state.payments[payment.id] = payment
        state.replace(expense, status="paid")
        return {"payment_id": payment.id, "paid": payment.amount}


def _unsettled(state: Office, expense_id: str) -> Expense:
    expense = state.find(Expense, expense_id)
    if expense.status in ("paid", "rejected"):
        raise ToolError(f"expense {expense_id} is {expense.status} already")
    return expense


def _brief(expense: Expense) -> dict[str, Any]:
    return {
        "expense_id": expense.id,
        "employee_id": expense.employee,
        "vendor": expense.vendor,
        "category": expense.category,
        "amount": expense.amount,
        "receipt": expense.receipt,
        "spent_on": expense.spent_on,
        "status": expense.status,
    }
