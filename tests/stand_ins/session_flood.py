"""A replica's server that sends endless session tickets, as small as TLS 1.3 allows.

OpenSSL's own server makes larger tickets, and takes longer to make one than a client to read it. So
the records after the handshake are made here, with the secret that OpenSSL logs.
"""

import ctypes
import hashlib
import hmac
import socket
import ssl
import struct
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

RECORD = b"\x04\x00\x00\x0e" + struct.pack(">II", 7200, 1) + b"\x00\x00\x01x\x00\x00"
SESSIONS = RECORD * (16_000 // len(RECORD))
_HANDSHAKE = b"\x16"
_RECORDS = 300
_TAG_BYTES, _GET_TAG = 16, 0x10


class SessionFlood:
    """Listens on a port of its own until it is closed."""

    def __init__(self, context: ssl.SSLContext) -> None:
        with tempfile.NamedTemporaryFile(delete=False) as log:
            self._log = Path(log.name)
        self._context = context
        context.keylog_filename, context.num_tickets = str(self._log), 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more clients."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._log.unlink()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # One client after another, so that the last secret in the log is this one's.
                with client, suppress(OSError):
                    self._flood(client)

    def _flood(self, client: socket.socket) -> None:
        come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(come, go, server_side=True)
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                client.sendall(go.read())
                if not (data := client.recv(1 << 16)):
                    return
                come.write(data)
        client.sendall(go.read())
        rows = [line.split() for line in self._log.read_text().splitlines()]
        secret = next(row[2] for row in reversed(rows) if row[0] == "SERVER_TRAFFIC_SECRET_0")
        key, iv = (_expanded(bytes.fromhex(secret), *what) for what in ((b"key", 32), (b"iv", 12)))
        client.sendall(b"".join(_record(key, iv, number) for number in range(_RECORDS)))
        while client.recv(1 << 16):
            pass


def _record(key: bytes, iv: bytes, number: int) -> bytes:
    text = SESSIONS + _HANDSHAKE
    head = b"\x17\x03\x03" + struct.pack(">H", len(text) + _TAG_BYTES)
    nonce = (int.from_bytes(iv, "big") ^ number).to_bytes(len(iv), "big")
    return head + _sealed(key, nonce, head, text)


def _expanded(secret: bytes, label: bytes, size: int) -> bytes:
    """Expand a secret by HKDF-Expand-Label of RFC 8446, to no more than one block."""
    info = struct.pack(">H", size) + bytes([6 + len(label)]) + b"tls13 " + label + b"\x00\x01"
    return hmac.new(secret, info, hashlib.sha384).digest()[:size]


def _sealed(key: bytes, nonce: bytes, head: bytes, text: bytes) -> bytes:
    """Encrypt a record's text with AES-256-GCM, OpenSSL's first choice."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    for name in ("EVP_CIPHER_CTX_new", "EVP_aes_256_gcm"):
        getattr(crypto, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(crypto.EVP_CIPHER_CTX_new())
    count, tag = ctypes.c_int(), ctypes.create_string_buffer(_TAG_BYTES)
    found = ctypes.create_string_buffer(len(text))
    cipher = ctypes.c_void_p(crypto.EVP_aes_256_gcm())
    crypto.EVP_EncryptInit_ex(context, cipher, None, key, nonce)
    crypto.EVP_EncryptUpdate(context, None, ctypes.byref(count), head, len(head))
    crypto.EVP_EncryptUpdate(context, found, ctypes.byref(count), text, len(text))
    crypto.EVP_EncryptFinal_ex(context, tag, ctypes.byref(count))
    crypto.EVP_CIPHER_CTX_ctrl(context, _GET_TAG, _TAG_BYTES, tag)
    crypto.EVP_CIPHER_CTX_free(context)
    return found.raw + tag.raw
