"""Every file of a received run as a link, a FIFO, a device, a folder, a huge file and nested JSON."""

from pathlib import Path

import pytest

from tests.reliability.test_received import FILES, WAYS, Place, look
from tests.reliability.test_received import place as place  # the fixture


@pytest.mark.attack("Untrusted files")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_every_file_in_every_way(place: Place, name: str, way: str, tmp_path: Path) -> None:
    look(place, name, way, tmp_path)
