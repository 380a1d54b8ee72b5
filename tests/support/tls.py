"""A certificate for servers, and their options for TLS."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificate(NamedTuple):
    """The files of a certificate for 127.0.0.1, which signs itself, and of its key."""

    public: Path
    private: Path

    def options(self, port: int) -> tuple[str, ...]:
        """Return the options of a server with a TLS port; clients need no certificate."""
        files = ("--tls-cert-file", str(self.public), "--tls-key-file", str(self.private))
        return ("--tls-port", str(port), *files, "--tls-ca-cert-file", str(self.public), "--tls-auth-clients", "no")


def make_certificate(directory: Path) -> Certificate:
    """Make a certificate."""
    made = Certificate(directory / "certificate.pem", directory / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-out", str(made.public)]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(made.private), *subject], check=True, capture_output=True)
    return made
