"""`kind: publish`: appends an event to the journal, once, however often the step is tried."""

from __future__ import annotations

from typing import Any

from tape.documents.document import Fields
from tape.errors import InvalidSubject
from tape.model import subject
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall


class PublishTool:
    """Appends `payload` under `subject`."""

    def check(self, fields: Fields) -> None:
        """A subject, whole or with templates, and anything as the payload."""
        fields.node.mapping("kind", "subject", "payload")
        name = fields.text("subject")
        if name and not is_template(name):
            try:
                subject.normalize(name)
            except InvalidSubject as error:
                fields.at("subject").wrong(str(error).rstrip("."))

    async def call(self, call: ToolCall) -> Any:
        """Append the event; its subject."""
        name = call.config["subject"]
        await call.host.publish(name, call.config.get("payload"), call.key)
        return {"subject": name}
