"""Number the calls of one caller, so that the server executes each of them once.

A call has the number behind that of the caller's record in Redis, which holds the number and the result of the last
call that changed anything. If the record has the number already, the call was executed and its reply was lost: it gets
that result. A smaller number, or no record, means that the server has lost data.
"""


class Steps:
    """A caller's record, as far as the caller knows it.

    Attributes:
        field: where the record is; empty before the caller has one.
        record: `opened number result`.
        number: that of the last answered call.
        next: the record of the next call, without its result.
    """

    def __init__(self, field: str = "", record: bytes = b"0 0 ") -> None:
        self.field = field
        self.number = -1
        self.note(record)

    def numbered(self, number: int) -> bytes:
        """Return the record of a call with this number, without its result."""
        return b"%b %d " % (self.record.split(b" ", 1)[0], number)

    def note(self, record: bytes) -> None:
        """Note the record of an answered call, unless a signal's handler has made a later one meanwhile."""
        opened, digits, _ = record.split(b" ", 2)
        number = int(digits)
        if number >= self.number:
            self.record, self.next, self.number = record, b"%b %d " % (opened, number + 1), number
