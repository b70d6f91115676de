"""Undoing: a trip is booked step by step, the last step fails, and what was booked is cancelled, newest first.

python examples/compensation.py
"""

import os

import tape
from tape.reactors import compensate_once

URL = os.environ.get("TAPE_URL", tape.DEFAULT_URL)


def cancel_flight(number: str) -> None:
    print(f"flight {number} cancelled")


def cancel_hotel(name: str) -> None:
    print(f"hotel {name} cancelled")


@tape.effect(compensate=cancel_flight)
def book_flight(number: str) -> str:
    print(f"flight {number} booked")
    return number


@tape.effect(compensate=cancel_hotel)
def book_hotel(name: str) -> str:
    print(f"hotel {name} booked")
    return name


@tape.effect
def pay(amount: int) -> None:
    raise ValueError("the card was declined")


def main() -> None:
    try:
        with tape.durable_run("travel", url=URL):
            book_flight("TP 531")
            book_hotel("Miramar")
            pay(1_200)
    except tape.EffectFailed as failed:
        print(failed)

    # The process of `tape reactors` does this, also after the process above has ended.
    while compensate_once(URL):
        pass


if __name__ == "__main__":
    main()
