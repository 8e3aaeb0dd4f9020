"""The expense tools: expenses of employees, and payments.

Like a bank, the tools make any requested payment; `rules` defines which payments are allowed.
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
    """Tools to file, settle and pay expenses."""

    @tool(effect="read")
    def list_expenses(
        self, state: Office, query: str = "", employee_id: str = "", status: Settlement | None = None, page: int = 1
    ) -> dict[str, Any]:
        """List expenses by number.

        Args:
            query: Words that must all be in the vendor, the purpose or the receipt number.
            employee_id: The employee, such as C-0001.
            status: The status of the expenses.
            page: The page of the results.
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
        """Get an expense.

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
        """File an expense from its receipt.

        Args:
            employee_id: The employee who spent the money, such as C-0001.
            vendor: The vendor.
            category: The category.
            amount: The amount.
            receipt: The receipt number.
            spent_on: The date on the receipt.
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
        """Change the category of an expense.

        Args:
            expense_id: The expense, such as EX-0001.
            category: The category.
        """
        return {"category": state.replace(_unsettled(state, expense_id), category=category).category}

    @tool
    def approve_expense(self, state: Office, expense_id: str) -> dict[str, str]:
        """Approve an expense for the office, so it can be paid. This does not replace the manager's approval.

        Args:
            expense_id: The expense, such as EX-0001.
        """
        return {"status": state.replace(_unsettled(state, expense_id), status="approved").status}

    @tool
    def reject_expense(self, state: Office, expense_id: str, reason: str) -> dict[str, str]:
        """Reject an expense, so it is not paid back.

        Args:
            expense_id: The expense, such as EX-0001.
            reason: The reason.
        """
        rejected = state.replace(_unsettled(state, expense_id), status="rejected", note=reason)
        return {"status": rejected.status}

    @tool(effect="external")
    def pay(self, state: Office, expense_id: str, amount: Amount) -> dict[str, Any]:
        """Pay an employee back for an approved expense. This cannot be undone.

        Args:
            expense_id: The expense, such as EX-0001.
            amount: The amount to pay.
        """
        expense = state.find(Expense, expense_id)
        if expense.status not in ("approved", "paid"):
            raise ToolError(f"expense {expense_id} is {expense.status}; only approved expenses can be paid")
        payment = Payment(id=records.new_id("PAY", state.payments), expense=expense.id, amount=round(amount, 2))
        state.payments[payment.id] = payment
        state.replace(expense, status="paid")
        return {"payment_id": payment.id, "paid": payment.amount}


def _unsettled(state: Office, expense_id: str) -> Expense:
    expense = state.find(Expense, expense_id)
    if expense.status in ("paid", "rejected"):
        raise ToolError(f"expense {expense_id} is already {expense.status}")
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
