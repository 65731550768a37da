"""What all of Slicewise's own TLS has in common."""

CURVE = "prime256v1"
"""OpenSSL's name of P-256, the one group of handshakes where both ends are Slicewise's own:
OpenSSL's largest would take a server a fifth of a second for a stranger's hello. A replica's door
travels to its node alone, and says it itself (``launcher/scripts/door.py``)."""
