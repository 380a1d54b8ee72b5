"""The user's names in errors: settings of a crawl, or arguments of a filter without one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """The user's names for options, for a filter's key and for a client, and for how to begin anew.

    Attributes:
        prefix: stands before the names of options, which are in capitals then.
        key: the filter's key.
        keys: the keys that may be chosen, in parentheses behind "use other keys", or nothing.
        anew: what makes a filter begin anew.
        address: where a server's address is given.
        login: where a user name and a password are given.
        protocol: what asks for RESP2.
        client: how a client's class is chosen, behind "pass a redis.Redis or redis.RedisCluster".
        encoding: where an encoding is chosen, behind "decode_responses=False".
    """

    prefix: str
    key: str
    keys: str
    anew: str
    address: str
    login: str
    protocol: str
    client: str
    encoding: str

    def option(self, name: str) -> str:
        """Return the user's name of an option."""
        return self.prefix + name.upper() if self.prefix else name


SETTINGS = Names(
    prefix="BLOOMFILTER_",
    key="SCHEDULER_DUPEFILTER_KEY",
    keys=" (SCHEDULER_DUPEFILTER_KEY, SCHEDULER_QUEUE_KEY)",
    anew="SCHEDULER_FLUSH_ON_START = True",
    address="REDIS_URL",
    login="in REDIS_URL or REDIS_PARAMS",
    protocol="REDIS_PARAMS = {'protocol': 2}",
    client=", in settings REDIS_PARAMS = {'redis_cls': 'redis.Redis'}",
    encoding=" (REDIS_ENCODING, REDIS_DECODE_RESPONSES and REDIS_PARAMS in settings)",
)
ARGUMENTS = Names(
    prefix="",
    key="key",
    keys="",
    anew="flush=True",
    address="the client's address",
    login="of the client",
    protocol="protocol=2 for the client",
    client="",
    encoding=" to the client",
)
