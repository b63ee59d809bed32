"""Reads members of a zip file that may be hostile: sizes are checked before a byte is decompressed, and nothing is written.

inspect_ai compresses its logs with Zstandard, which Python's zipfile reads from 3.14 on; pyarrow has a decoder.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

from mill.api.errors import RunError
from mill.api.storage import MOST_LINE, open_regular

_HEADER = struct.Struct("<4s22xHH")  # of a member: signature, then the lengths of its name and of its extra field
_ZSTANDARD = 93
_MOST_RATIO = 1000  # of all members' size to the file's, where they exceed 1 GiB
_MOST_TOTAL = 1 << 30


class ZipMembers:
    """The members of a zip file by name. Where a name is used twice the last counts, as in inspect_ai."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._handle: IO[bytes] = open_regular(file)
        try:
            self._members = self._listed()
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> ZipMembers:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def _listed(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(self._handle) as archive:
                members = {info.filename: info for info in archive.infolist()}
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ArithmeticError,
            ValueError,
            EOFError,
            OSError,
            struct.error,
        ) as error:
            raise RunError(f"{self.file} is not a valid zip file: {error}") from error
        size = os.fstat(self._handle.fileno()).st_size
        if sum(info.compress_size for info in members.values()) > size:
            raise RunError(f"{self.file} is not valid: its members overlap")
        total = sum(info.file_size for info in members.values())
        if total > max(_MOST_TOTAL, _MOST_RATIO * size):
            raise RunError(f"{self.file} is not valid: {size:,} bytes would become {total:,}")
        return members

    def read(self, name: str) -> bytes:
        """A member; refused where it is larger than MOST_LINE, damaged, or not as large as the file says."""
        info, where = self._members[name], f"{self.file}, member {name},"
        if max(info.file_size, info.compress_size) > MOST_LINE:
            raise RunError(f"{where} is larger than {MOST_LINE >> 20} MiB")
        if info.flag_bits & 1:
            raise RunError(f"{where} is encrypted")
        try:
            data = _decompressed(self._raw(info), info)
        except (ArithmeticError, ValueError, OSError, struct.error, zlib.error) as error:
            raise RunError(f"{where} cannot be decompressed: {error}") from error
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise RunError(f"{where} is damaged: its size or checksum is wrong")
        return data

    def _raw(self, info: zipfile.ZipInfo) -> bytes:
        self._handle.seek(info.header_offset)
        signature, name, extra = _HEADER.unpack(self._handle.read(_HEADER.size))
        if signature != b"PK\x03\x04":
            raise ValueError("it does not begin with a header")
        self._handle.seek(name + extra, os.SEEK_CUR)
        return self._handle.read(info.compress_size)


def _decompressed(raw: bytes, info: zipfile.ZipInfo) -> bytes:
    """At most one byte more than the file says."""
    if info.compress_type == zipfile.ZIP_STORED:
        return raw
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, info.file_size + 1)
    if info.compress_type == _ZSTANDARD:
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as stream:
            return bytes(stream.read(info.file_size + 1))
    raise ValueError(f"compression {info.compress_type} is not supported")
