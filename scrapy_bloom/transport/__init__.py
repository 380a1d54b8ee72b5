"""Send commands to a server and classify its failures. Knows no key and no filter."""
