"""The way of commands to a server, and the meaning of its failures. Knows no key and no filter."""
