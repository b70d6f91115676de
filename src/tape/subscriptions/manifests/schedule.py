"""The cadence of a scheduled subscription as the `schedule` of a CronJob."""

from __future__ import annotations

from tape.errors import NotDeployable
from tape.model.cron import Cron
from tape.subscriptions.document.spec import Subscription

_ALL_DAYS, _ALL_WEEKDAYS = 31, 7


def schedule_of(subscription: Subscription) -> str:
    """The same times in Kubernetes' syntax, where Sunday is 0 and never 7. Raises NotDeployable if it has none.

    `*/2` in one of the two day fields and a restricted other one: such days fit both here, and either there.
    """
    cadence = subscription.spec.cadence
    cron = Cron.parse(cadence)
    is_both = len(cron.days) < _ALL_DAYS and len(cron.weekdays) < _ALL_WEEKDAYS
    if is_both and (cron.any_day or cron.any_weekday):
        raise NotDeployable(
            f"{subscription.path}: cadence {cadence!r} restricts day of month and weekday, one of them with '*/n',"
            " which Kubernetes reads differently. Restrict one of them, or write the days as a list."
        )
    parts = cadence.split()
    if len(parts) == 5 and "7" in parts[4]:
        parts[4] = ",".join(map(str, sorted(cron.weekdays)))
    return " ".join(parts)
