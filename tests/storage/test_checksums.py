"""Digests and sealed JSON. The literal bytes are formats on disk, which must stay readable."""

from pathlib import Path

import pytest

from mecam.storage.checksums import digest_blocks, read_blocks, read_sealed, seal, unseal
from mecam.storage.files import RunError

VALUE = {"id": "r", "recipe": {"a": [1]}}
SEALED = b"""{
  "id": "r",
  "recipe": {
    "a": [
      1
    ]
  },
  "checksum": "f4abe5b7c2433f10c5f7cc725113b74fa5df98d0ac5ac67f81c3453c3215ed81"
}
"""
LINE = (
    b'{"step": 0, "environment": {"torch": "x"}, "checksum": '
    b'"2ff10e8a4bdc3e2b937c8c6298bf7a19b0cc41381352d3d6f9bc4eed46511605"}\n'
)


def test_the_formats_on_disk() -> None:
    assert seal(VALUE) == SEALED
    assert unseal(SEALED) == VALUE
    session = {"step": 0, "environment": {"torch": "x"}}
    assert seal(session, b"r\n", indent=False) == LINE
    assert unseal(LINE, b"r\n") == session


def test_any_change_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    for place in range(len(SEALED)):
        damaged = SEALED[:place] + bytes([SEALED[place] ^ 1]) + SEALED[place + 1 :]
        file.write_bytes(damaged)
        with pytest.raises(RunError, match=r"run\.json is damaged"):
            read_sealed(file)
    for data, before in ((SEALED[:-1], b""), (SEALED + b"x", b""), (LINE, b"other\n")):
        with pytest.raises(ValueError, match="does not match its checksum"):
            unseal(data, before)


@pytest.mark.attack("Untrusted files")
def test_a_checksum_cannot_be_taken_out(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"id": "r"}\n')
    with pytest.raises(RunError, match=r"run\.json is damaged: its content does not match its checksum"):
        read_sealed(file)


def test_parts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(range(256)) * 10_000)
    assert b"".join(read_blocks(file)) == file.read_bytes()
    assert b"".join(read_blocks(file, 1000, 2_000_000)) == file.read_bytes()[1000:2_001_000]
    assert digest_blocks(read_blocks(file)) == digest_blocks([file.read_bytes()])
    assert digest_blocks([b""]) == "cae66941d9efbd404e4d88758ea67670"
