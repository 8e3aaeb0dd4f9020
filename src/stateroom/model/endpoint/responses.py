"""A model that speaks Responses."""

from __future__ import annotations

from typing import Any

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model.chat_settings import usage_of
from stateroom.model.endpoint.endpoint import Endpoint, settings_of
from stateroom.model.model import Answer, Model, Request

SEALED = "reasoning.encrypted_content"
"""What to ask for, so that a model's reasoning can be sent back to it by us, who keep the conversation."""

PASSING = frozenset({"server_error", "rate_limit_exceeded"})
"""Codes of errors after which the same request may do later."""


class ResponsesModel(Model):
    """Asks an endpoint by the Responses API; nothing is kept there.

    That API knows no seed. With `tells_seed` it goes along as `metadata`, where a server that wants one may look.
    """

    def __init__(self, endpoint: Endpoint, *, tells_seed: bool) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._tells_seed = tells_seed
        self._seals = True

    async def answer(self, request: Request) -> Answer:
        body = self._body(request)
        try:
            reply = await self._endpoint.ask("responses", body)
        except ModelFailed as error:
            if "include" in request.settings or "encrypted" not in str(error).lower():
                raise
            self._seals = False  # it does not reason, and refuses to be asked for it
            reply = await self._endpoint.ask("responses", self._body(request))
        return self._read(reply)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {"store": False} | ({"include": [SEALED]} if self._seals else {})
        body |= settings_of(request.settings)
        if self._tells_seed:
            body["metadata"] = {"seed": str(request.seed), **body.get("metadata", {})}
        if request.tools:
            body["tools"] = [*request.tools]
        return body | {"input": [*request.items]}

    def _read(self, reply: dict[str, Any]) -> Answer:
        status, error, why = reply.get("status"), _fields(reply, "error"), _fields(reply, "incomplete_details")
        if status not in (None, "completed", "incomplete") or why.get("reason") == "content_filter":
            kind = ModelUnavailable if error.get("code") in PASSING else ModelFailed
            raise kind(f"{self.name} gave no answer: the response is {status}, {error or why!r:.500}")
        output = reply.get("output")
        if not isinstance(output, list):
            raise ModelFailed(f"{self.name} answered with a response that has no output: {reply!r:.300}")
        return Answer(output, usage_of(reply.get("usage")), truncated=status == "incomplete")


def _fields(reply: dict[str, Any], name: str) -> dict[str, Any]:
    found = reply.get(name)
    return found if isinstance(found, dict) else {}
