"""`kind: publish`: appends an event to the journal, once, however often the step is tried."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from tape.documents.document import Fields
from tape.errors import InvalidSubject
from tape.model import subject
from tape.playbooks.spec import Text
from tape.playbooks.templates import is_template
from tape.playbooks.tools.tool import ToolCall, read_config


class PublishFields(msgspec.Struct, kw_only=True):
    """Appends an event to the journal, once."""

    subject: Annotated[Text, Meta(description="Subject of the event.")]
    payload: Annotated[Any, Meta(description="Its payload.")] = None


class PublishTool:
    """Appends `payload` under `subject`."""

    declaration: ClassVar[type[msgspec.Struct]] = PublishFields

    def check(self, fields: Fields) -> None:
        """Check the declared fields, and the subject unless it is a template."""
        name = read_config(fields, PublishFields).subject
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
