"""The user's names for errors: settings in a crawl, arguments outside one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """The names that the user wrote: settings of a crawl, or arguments of a filter.

    Attributes:
        prefix: the prefix of options, whose names are then in capitals, or nothing.
        key: the filter's key.
        keys: the settings of all keys, in parentheses after "use other keys", or nothing.
        anew: how to start with an empty filter.
        address: where to set the server's address.
        login: where to set the user name and the password.
        protocol: how to select RESP2.
        client: how to choose a client class, after "pass a redis.Redis or redis.RedisCluster".
        encoding: where to set the encoding, after "decode_responses=False".
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


SETTING_NAMES = Names(
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
ARGUMENT_NAMES = Names(
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
